"""The repository's own tools: run with a plain Python 3.11, standard library only, never shipped."""
