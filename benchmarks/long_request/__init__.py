"""Parts of `long_request.py`."""
