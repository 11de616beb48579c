"""What a sender does with a batch, and what can come of it."""

from dataclasses import dataclass
from typing import Protocol

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse


@dataclass(frozen=True, slots=True)
class Taken:
    """The collector has the batch, up to spans that it would not have."""

    rejected: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The collector does not have the batch, as far as we know."""

    reason: str
    is_final: bool = False
    """It would not help to send it again."""
    after_s: float | None = None
    """When the collector wants it again; it is busy, not broken."""


class Sender(Protocol):
    """Sends encoded requests, one at a time, and never raises."""

    def send(self, request: bytes) -> Taken | Refused:
        """Send a request and wait for the answer, for as long as the options say."""
        ...

    def close(self) -> None:
        """Give the connection up."""
        ...


def taken(response: ExportTraceServiceResponse) -> Taken:
    """Read a collector's answer; it may have rejected some of the spans."""
    partial = response.partial_success
    return Taken(max(0, partial.rejected_spans), partial.error_message or None)


def taken_bytes(content: bytes) -> Taken:
    """Read an encoded answer; an unreadable one does not unmake a success."""
    if not content:
        return Taken()
    try:
        return taken(ExportTraceServiceResponse.FromString(content))
    except DecodeError:
        return Taken()
