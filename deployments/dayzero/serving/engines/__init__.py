"""Engines behind the seam: real vLLM and the simulated one."""
