"""The `dayzero` command."""
