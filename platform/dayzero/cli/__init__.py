"""The command line: `dayzero up | down | status | version`. Thin: it parses, calls one function, and prints."""
