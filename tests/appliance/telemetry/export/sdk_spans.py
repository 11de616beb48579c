"""Our spans as OpenTelemetry's SDK would encode them: what our encoder is measured against."""

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from appliance.telemetry.span_data import SpanData

SCOPE = ("quarterdeck.telemetry", "1.2.3")


def resource_of(process: str) -> dict[str, str]:
    return {"service.name": "quarterdeck", "quarterdeck.process": process}


def sdk_span(span: SpanData, offset_ns: int) -> ReadableSpan:
    error = span.error
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=None if span.parent_id is None else _context(span.trace_id, span.parent_id),
        resource=Resource(resource_of(span.process)),
        attributes=span.attributes,
        links=[Link(_context(link.context.trace_id, link.context.span_id)) for link in span.links],
        kind=SpanKind[span.kind.upper()],
        status=Status(StatusCode.UNSET) if error is None else Status(StatusCode.ERROR, error),
        start_time=span.start_ns + offset_ns,
        end_time=span.end_ns + offset_ns,
        instrumentation_scope=InstrumentationScope(*SCOPE),
    )


def sdk_request(spans: list[SpanData], offset_ns: int) -> ExportTraceServiceRequest:
    """What the SDK's encoder makes of spans, without what we mean differently.

    It says of every parent that it is local, and nothing of the flags of links; we give the flags
    as they are. It writes a status even where there is none.
    """
    request = encode_spans([sdk_span(span, offset_ns) for span in spans])
    flags = {span.span_id: span for span in spans}
    for group in request.resource_spans:
        for scope in group.scope_spans:
            for encoded in scope.spans:
                given = flags[encoded.span_id.hex()]
                encoded.flags = given.flags | 1
                if given.error is None:
                    encoded.ClearField("status")
                for link, ours in zip(encoded.links, given.links, strict=True):
                    link.flags = ours.context.flags
    return request


def _context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(1)
    )
