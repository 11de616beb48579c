"""A request's trace as OTLP JSON: what any OpenTelemetry back end can import.

The output messages of steps stand in traces of their own there; here they keep the place that they
have in the request's tree and carry `quarterdeck.linked`, so that the file is one whole trace.
Source: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from appliance.supervisor.admin.schemas import Span, Trace

_KINDS = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}
_STATUS = {"unset": 0, "ok": 1, "error": 2}
SERVICE = "quarterdeck"
LINKED = "quarterdeck.linked"


def otlp_json(trace: Trace) -> dict[str, Any]:
    """Return the export request; one resource for each process."""
    by_process: defaultdict[str, list[Span]] = defaultdict(list)
    for span in trace.spans:
        by_process[span.process].append(span)
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(_resource(process))},
                "scopeSpans": [
                    {
                        "scope": {"name": "quarterdeck.telemetry"},
                        "spans": [_span(trace.request.trace_id, span) for span in spans],
                    }
                ],
            }
            for process, spans in by_process.items()
        ]
    }


def _resource(process: str) -> dict[str, Any]:
    return {"service.name": SERVICE, "service.instance.id": process, "quarterdeck.process": process}


def _span(trace_id: str, span: Span) -> dict[str, Any]:
    attributes = {**span.attributes, **({LINKED: True} if span.linked else {})}
    encoded: dict[str, Any] = {
        "traceId": trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": _KINDS[span.kind],
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(attributes),
        "status": {"code": _STATUS[span.status]},
    }
    if span.parent_id is not None:
        encoded["parentSpanId"] = span.parent_id
    return encoded


def _attributes(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list() | tuple():
            items: Sequence[Any] = value
            return {"arrayValue": {"values": [_value(item) for item in items]}}
        case _:
            return {"stringValue": str(value)}
