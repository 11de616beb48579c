"""Exemplars: the trace that shows what a histogram's bucket looks like."""

from typing import NamedTuple

from appliance.telemetry.ledger import Labels


class TraceExample(NamedTuple):
    """A trace that fell in a bucket."""

    trace_id: str
    value: float
    at_s: float
    """Unix seconds."""


Examples = dict[tuple[str, Labels, int], TraceExample]
"""By metric name, label values and index of the bucket."""
