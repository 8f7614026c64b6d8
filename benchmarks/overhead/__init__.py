"""The parts of `benchmarks/overhead.py`: what is compared, how it is asked, what is counted."""
