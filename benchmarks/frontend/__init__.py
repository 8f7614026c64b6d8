"""The two halves of `benchmarks/frontend.py`."""
