"""A request's trace as one self-contained page of HTML: opens anywhere, asks no network."""

import json
from importlib.resources import files
from typing import Any

from appliance.supervisor.admin.schemas import Explanation, Span, Trace
from appliance.trace_formats.critical_path import critical_path

_PLACE = "{{DATA}}"


def trace_page(trace: Trace, explanation: Explanation | None = None) -> str:
    """Return the page; `explanation` fills its panel when there is one."""
    template = files("appliance.trace_formats").joinpath("page.html").read_text(encoding="utf-8")
    return template.replace(_PLACE, _embedded(_content(trace, explanation)))


def _content(trace: Trace, explanation: Explanation | None) -> dict[str, Any]:
    zero_ns = trace.spans[0].start_ns if trace.spans else 0
    return {
        "request": trace.request.model_dump(mode="json"),
        "headline": trace.headline,
        "complete": trace.complete,
        "spans": [_span(span, zero_ns) for span in trace.spans],
        "critical": [
            {"span_id": span.span_id, **_times(start_ns, end_ns, zero_ns)}
            for span, start_ns, end_ns in critical_path(trace.spans)
        ],
        "explanation": None if explanation is None else explanation.model_dump(mode="json"),
    }


def _span(span: Span, zero_ns: int) -> dict[str, Any]:
    dumped = span.model_dump(mode="json", exclude={"start_ns", "end_ns"})
    return {**dumped, **_times(span.start_ns, span.end_ns, zero_ns)}


def _times(start_ns: int, end_ns: int, zero_ns: int) -> dict[str, float]:
    """Return times since the request's arrival: nanoseconds since 1970 are no JavaScript number."""
    return {"start_us": (start_ns - zero_ns) / 1e3, "end_us": (end_ns - zero_ns) / 1e3}


def _embedded(content: dict[str, Any]) -> str:
    """Return JSON that nothing inside can end early: it stands in a `script` element."""
    text = json.dumps(content, separators=(",", ":"), default=str)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
