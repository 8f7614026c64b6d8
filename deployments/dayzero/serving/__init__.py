"""The Ray Serve side: replicas, the request router adapter, and the application built from a fleet file."""
