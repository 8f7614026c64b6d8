"""Parts of `benchmarks/place.py`."""
