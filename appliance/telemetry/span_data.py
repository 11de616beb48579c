"""A span as the hub builds it: plain values, before it is stored or exported."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from engine.wire.hops import HopLink

SpanKindName = Literal["internal", "server", "client", "producer", "consumer"]
AttributeValue = str | bool | int | float | tuple[str, ...]
Attributes = dict[str, AttributeValue]


class SpanData(msgspec.Struct, kw_only=True):
    """One span. Times are `engine.clock` readings; store and export turn them into Unix time."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    kind: SpanKindName
    process: str
    """Where it happened: `gateway-0`, `e0`, `supervisor`."""
    start_ns: int
    end_ns: int
    attributes: Attributes
    error: str | None = None
    """Makes the status `error`."""
    links: tuple[HopLink, ...] = ()
    flags: int = 0


def present(attributes: Mapping[str, AttributeValue | None]) -> Attributes:
    """Return the attributes without those that are None."""
    return {name: value for name, value in attributes.items() if value is not None}
