"""The engine: one process per engine core, and what other processes need to talk to it."""
