"""Dialects: request bodies into conversations, event streams into wire frames."""
