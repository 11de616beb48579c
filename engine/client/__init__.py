"""Clients of engine cores: one interface, in process or over ZeroMQ."""
