"""OpenAI Chat Completions: request shape, conversation, wire frames."""
