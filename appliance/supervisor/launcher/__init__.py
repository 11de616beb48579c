"""Ways to start an engine process."""
