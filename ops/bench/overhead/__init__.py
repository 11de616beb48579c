"""Parts of `telemetry_overhead.py`."""
