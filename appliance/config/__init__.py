"""Configuration: settings, where each value came from, and where files live."""
