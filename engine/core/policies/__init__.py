"""Scheduling policies: which waiting request is next, which running one gives way."""
