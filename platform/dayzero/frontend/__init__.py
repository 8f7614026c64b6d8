"""The frontend seam: conversations in, prompt tokens out; token ids in, events out. Pure."""
