"""The C++ backend for CPUs: quantized products, paged attention, a whole step in one call."""
