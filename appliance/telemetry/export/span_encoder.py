"""Writes spans as OTLP protobuf, straight from our own structs.

It costs a fraction of what the SDK's encoder does, because the same keys, values, names and
resources come again and again and their bytes are kept (ops/decisions/0010-otlp-encoding.md has the
figures). Field numbers: https://github.com/open-telemetry/opentelemetry-proto, v1; tests compare
the result with what the SDK writes.

A message is a list of fields, each a tag (its number and how its length is known) and a value.
Encodings of a request one after the other are an encoding of all, so a batch can be encoded in
pieces.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from appliance.telemetry.export.wire_values import KeyValues, delimited, varint
from appliance.telemetry.span_data import AttributeValue, SpanData
from appliance.telemetry.span_names import LINKS_DROPPED
from engine.wire.header import SAMPLED
from engine.wire.hops import HopLink

MAX_KEPT: Final = 1024
"""Names and processes whose bytes are kept; they are few, but a bound is a bound."""
KINDS: Final = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}
# tags of Span, with the length where it is fixed: `0a 10` is the trace id, 16 bytes
_TRACE_ID, _SPAN_ID, _PARENT_ID = "0a10", "1208", "2208"
_NAME, _KIND, _ATTRIBUTE, _STATUS = b"\x2a", b"\x30", b"\x4a", b"\x7a"
_START, _END, _TIMES = 0x39, 0x41, struct.Struct("<BQBQ")
_FLAGS = tuple(b"\x85\x01" + flags.to_bytes(4, "little") for flags in range(256))
_LINK, _DROPPED_LINKS = "6a21", b"\x70"  # of 33 bytes
_LINK_FLAGS = tuple("35" + flags.to_bytes(4, "little").hex() for flags in range(256))
_MESSAGE, _IS_ERROR = b"\x12", b"\x18\x02"
# tags of the messages around it
_RESOURCE_SPANS, _RESOURCE, _RESOURCE_ATTRIBUTE = b"\x0a", b"\x0a", b"\x0a"
_SCOPE_SPANS, _SCOPE, _SCOPE_NAME, _SCOPE_VERSION = b"\x12", b"\x0a", b"\x0a", b"\x12"
_SPAN = b"\x12"


class SpanEncoder:
    """Encodes `ExportTraceServiceRequest`s. Not for two threads at once.

    Args:
        offset_ns: Added to readings of `engine.clock` to get Unix time.
        resource_of: Gives the attributes of the resource that a process is; asked once each.
        scope: Name and version of the instrumentation scope.
    """

    def __init__(
        self,
        offset_ns: int,
        resource_of: Callable[[str], Mapping[str, AttributeValue]],
        scope: tuple[str, str],
    ) -> None:
        self._offset_ns = offset_ns
        self._resource_of = resource_of
        self._attributes = KeyValues(_ATTRIBUTE)
        self._names: dict[tuple[str, str], bytes] = {}
        self._resources: dict[str, bytes] = {}
        name, version = (text.encode() for text in scope)
        self._scope = delimited(
            _SCOPE, delimited(_SCOPE_NAME, name) + delimited(_SCOPE_VERSION, version)
        )

    def encode(self, spans: Sequence[SpanData]) -> bytes:
        """Return a request with these spans, grouped by process."""
        by_process: dict[str, list[bytes]] = {}
        for span in spans:
            parts = by_process.get(span.process)
            if parts is None:
                parts = by_process[span.process] = [self._scope]
            body = self._span(span)
            parts.append(_SPAN + varint(len(body)))
            parts.append(body)
        return b"".join(self._group(process, parts) for process, parts in by_process.items())

    def _group(self, process: str, parts: list[bytes]) -> bytes:
        resource = self._resources.get(process) or self._resource(process)
        return delimited(_RESOURCE_SPANS, resource + delimited(_SCOPE_SPANS, b"".join(parts)))

    def _span(self, span: SpanData) -> bytes:
        ids = f"{_TRACE_ID}{span.trace_id}{_SPAN_ID}{span.span_id}"
        if span.parent_id is not None:
            ids = f"{ids}{_PARENT_ID}{span.parent_id}"
        offset_ns = self._offset_ns
        parts = [
            bytes.fromhex(ids),
            self._names.get((span.name, span.kind)) or self._name(span.name, span.kind),
            _TIMES.pack(_START, span.start_ns + offset_ns, _END, span.end_ns + offset_ns),
        ]
        self._attributes.extend(parts, span.attributes)
        if span.links:
            parts.append(_links(span.links))
            dropped = span.attributes.get(LINKS_DROPPED)
            if isinstance(dropped, int):
                parts.append(_DROPPED_LINKS + varint(dropped))
        if span.error is not None:
            parts.append(_error(span.error))
        parts.append(_FLAGS[(span.flags | SAMPLED) & 0xFF])
        return b"".join(parts)

    def _name(self, name: str, kind: str) -> bytes:
        if len(self._names) >= MAX_KEPT:
            self._names.clear()
        encoded = delimited(_NAME, name.encode(errors="replace")) + _KIND + varint(KINDS[kind])
        self._names[name, kind] = encoded
        return encoded

    def _resource(self, process: str) -> bytes:
        if len(self._resources) >= MAX_KEPT:
            self._resources.clear()
        parts: list[bytes] = []
        KeyValues(_RESOURCE_ATTRIBUTE).extend(parts, self._resource_of(process))
        encoded = self._resources[process] = delimited(_RESOURCE, b"".join(parts))
        return encoded


def _links(links: Sequence[HopLink]) -> bytes:
    return bytes.fromhex(
        "".join(
            f"{_LINK}{_TRACE_ID}{link.context.trace_id}{_SPAN_ID}{link.context.span_id}"
            f"{_LINK_FLAGS[link.context.flags & 0xFF]}"
            for link in links
        )
    )


def _error(message: str) -> bytes:
    return delimited(_STATUS, delimited(_MESSAGE, message.encode(errors="replace")) + _IS_ERROR)
