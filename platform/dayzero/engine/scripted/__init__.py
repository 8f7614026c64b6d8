"""The voice of a simulated Kimi K3: a script says what it answers to what, and how oddly. Ids in, ids out; pure."""
