"""A request's trace as Chrome trace events, which ui.perfetto.dev and chrome://tracing open.

One process group for each of ours. Complete events of one thread must nest, so spans that overlap
without nesting get lanes of their own; arrows lead from a message's send to its processing.
Source: the Trace Event Format,
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from appliance.supervisor.admin.schemas import Span, Trace

NS_PER_US = 1e3


@dataclass(slots=True)
class _Lane:
    """A thread of a process: spans that nest, by the ends of those that are open."""

    open_ends: list[int] = field(default_factory=list[int])

    def takes(self, span: Span) -> bool:
        """Put the span in if it nests in what is open."""
        while self.open_ends and self.open_ends[-1] <= span.start_ns:
            self.open_ends.pop()
        if self.open_ends and span.end_ns > self.open_ends[-1]:
            return False
        self.open_ends.append(span.end_ns)
        return True


def chrome_trace(trace: Trace) -> dict[str, Any]:
    """Return the whole file's content; times begin at the request's arrival."""
    zero_ns = trace.spans[0].start_ns if trace.spans else 0
    processes = {name: pid for pid, name in enumerate(_processes(trace.spans), start=1)}
    lanes = _lanes(trace.spans)
    events = [
        *_metadata(trace.spans, processes, lanes),
        *(_complete(s, processes[s.process], lanes[s.span_id], zero_ns) for s in trace.spans),
        *_arrows(trace.spans, processes, lanes, zero_ns),
    ]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "request": trace.request.id,
            "trace_id": trace.request.trace_id,
            "headline": trace.headline,
            "start_unix_ns": str(zero_ns),
        },
    }


def _processes(spans: Iterable[Span]) -> list[str]:
    return list(dict.fromkeys(span.process for span in spans))


def _lanes(spans: Sequence[Span]) -> dict[str, int]:
    """Return the lane of each span within its process."""
    found: dict[str, int] = {}
    of_process: dict[str, list[_Lane]] = {}
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        lanes = of_process.setdefault(span.process, [_Lane()])
        index = next((i for i, lane in enumerate(lanes) if lane.takes(span)), len(lanes))
        if index == len(lanes):
            lanes.append(_Lane([span.end_ns]))
        found[span.span_id] = index
    return found


def _metadata(
    spans: Sequence[Span], processes: dict[str, int], lanes: dict[str, int]
) -> Iterable[dict[str, Any]]:
    for process, pid in processes.items():
        yield _named("process_name", pid, 0, process)
        for lane in sorted({lanes[span.span_id] for span in spans if span.process == process}):
            yield _named("thread_name", pid, lane, f"lane {lane}" if lane else "phases")


def _named(name: str, pid: int, tid: int, value: str) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": {"name": value}}


def _complete(span: Span, pid: int, tid: int, zero_ns: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.name,
        "cat": span.kind,
        "pid": pid,
        "tid": tid,
        "ts": (span.start_ns - zero_ns) / NS_PER_US,
        "dur": (span.end_ns - span.start_ns) / NS_PER_US,
        "args": {**span.attributes, "span_id": span.span_id, "status": span.status},
    }


def _arrows(
    spans: Sequence[Span], processes: dict[str, int], lanes: dict[str, int], zero_ns: int
) -> Iterable[dict[str, Any]]:
    sends = {span.span_id: span for span in spans if span.kind == "producer"}
    for span in spans:
        send = sends.get(span.parent_id or "") if span.kind == "consumer" else None
        if send is None:
            continue
        common = {"name": "message", "cat": "message", "id": send.span_id}
        for phase, end, at_ns in (("s", send, send.end_ns), ("f", span, span.start_ns)):
            yield {
                **common,
                "ph": phase,
                "pid": processes[end.process],
                "tid": lanes[end.span_id],
                "ts": (at_ns - zero_ns) / NS_PER_US,
                **({"bp": "e"} if phase == "f" else {}),
            }
