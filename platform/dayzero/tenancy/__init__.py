"""Who may ask: API keys."""
