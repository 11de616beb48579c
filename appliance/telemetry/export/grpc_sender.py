"""Sends batches to a collector over gRPC; imported only where it is asked for.

Source: https://opentelemetry.io/docs/specs/otlp/#otlpgrpc-response
"""

from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from appliance.config.otlp import OtlpOptions
from appliance.telemetry.export.sender import Refused, Taken, taken

METHOD: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
STATUS_DETAILS: Final = "grpc-status-details-bin"
CHANNEL: Final = (
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5000),
    ("grpc.primary_user_agent", "quarterdeck"),
)
AGAIN: Final = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)


class GrpcSender:
    """Sends over OTLP/gRPC; see `sender.Sender`."""

    def __init__(self, options: OtlpOptions) -> None:
        self._options = options
        self._channel: Any = _channel(options)
        self._export = self._channel.unary_unary(
            METHOD, response_deserializer=ExportTraceServiceResponse.FromString
        )

    def send(self, request: bytes) -> Taken | Refused:
        """Call `Export` with an encoded request."""
        try:
            response = self._export(
                request, timeout=self._options.timeout_s, metadata=self._options.headers
            )
        except grpc.RpcError as error:
            return self._refused(error)
        except ValueError:  # the channel is closed
            return Refused("the export has ended", is_final=True)
        answer = taken(response)
        return Taken(answer.rejected, answer.reason and self._options.scrub(answer.reason))

    def close(self) -> None:
        """Close the channel; a call that waits ends."""
        self._channel.close()

    def _refused(self, error: Any) -> Refused:
        code: grpc.StatusCode = error.code()
        after_s = _after_s(error)
        is_busy = code is grpc.StatusCode.RESOURCE_EXHAUSTED and after_s is not None
        said = self._options.scrub(error.details() or "")
        reason = f"{code.name}: {said}" if said else code.name
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            reason = f"no answer within {self._options.timeout_s:g} s"
        return Refused(reason, is_final=code not in AGAIN and not is_busy, after_s=after_s)


def _channel(options: OtlpOptions) -> Any:
    compression = grpc.Compression.Gzip if options.gzip else grpc.Compression.NoCompression
    if not options.tls:
        return grpc.insecure_channel(options.url, CHANNEL, compression)
    credentials = grpc.ssl_channel_credentials(
        _content(options.certificate),
        _content(options.client_key),
        _content(options.client_certificate),
    )
    return grpc.secure_channel(options.url, credentials, CHANNEL, compression)


def _content(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()


def _after_s(error: Any) -> float | None:
    """Return what the collector's RetryInfo says."""
    for name, value in error.trailing_metadata() or ():
        if name == STATUS_DETAILS:
            return _retry_delay_s(value)
    return None


def _retry_delay_s(details: bytes) -> float | None:
    try:
        status = Status.FromString(details)
    except DecodeError:
        return None
    for detail in status.details:
        info = RetryInfo()
        if detail.Unpack(info):
            return max(0.0, info.retry_delay.ToTimedelta().total_seconds())
    return None
