"""Ids of spans that are built more than once: the same facts give the same ids.

The local view builds a trace whenever somebody looks, the export once; both must agree.
"""

from hashlib import blake2b


def derived_span_id(*parts: str) -> str:
    """Return 16 hex digits that follow from the parts."""
    return blake2b("/".join(parts).encode(), digest_size=8).hexdigest()


def derived_trace_id(*parts: str) -> str:
    """Return 32 hex digits that follow from the parts."""
    return blake2b("/".join(parts).encode(), digest_size=16).hexdigest()
