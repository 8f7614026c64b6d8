"""The engine seam: requests, deltas, events, the protocol, its conformance kit and the simulated engine's model."""
