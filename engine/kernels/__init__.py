"""Kernel backends behind one interface."""
