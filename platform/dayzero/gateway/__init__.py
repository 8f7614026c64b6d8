"""A request from admission to settlement: the ASGI app, its lifetime owner, health and dispatch."""
