"""Parts of `compare.py`."""
