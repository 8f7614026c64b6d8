"""Where a request goes: pure decisions, no ray and no HTTP."""
