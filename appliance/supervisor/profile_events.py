"""Steps and request spans as events of Chrome's trace format. Pure.

Source: Trace Event Format, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from appliance.supervisor.admin.schemas import Span, Trace
from appliance.supervisor.profile_merge import Axis, Event
from engine.wire.flight import RecordedStep

STEPS_PID: Final = 1_000_000_001
REQUESTS_PID: Final = 1_000_000_002
"""Above any process id of Linux (at most 4,194,304)."""
LANES_PER_REQUEST: Final = 100
STEP_PARTS: Final = ("schedule", "build", "forward", "sample", "send")


def step_events(engine_id: str, steps: Iterable[RecordedStep], axis: Axis) -> Iterator[Event]:
    """Yield the steps of an engine, each with its parts inside."""
    yield _named("process_name", STEPS_PID, 0, f"{engine_id}: steps")
    yield _sorted_at(STEPS_PID, -2)
    for step in steps:
        if step.end_ns is None:
            continue
        arguments = {
            "step": step.step,
            "requests": step.requests,
            "prefill_tokens": step.prefill_tokens,
            "decode_tokens": step.decode_tokens,
            "used_blocks": step.used_blocks,
            "waiting": step.waiting,
            "request_ids": list(step.request_ids),
        }
        name = f"engine.step {step.step}"
        yield _complete(name, (STEPS_PID, 1), (step.start_ns, step.end_ns), axis) | {
            "args": arguments
        }
        for part, start_ns, end_ns in _parts(step, step.end_ns):
            yield _complete(part, (STEPS_PID, 1), (start_ns, end_ns), axis)


def request_events(traces: Sequence[Trace], unix_offset_ns: int, axis: Axis) -> Iterator[Event]:
    """Yield the spans of requests, a group of lanes for each.

    Args:
        traces: Their times are Unix time as the hub sees it.
        unix_offset_ns: The hub's Unix time minus clock reading.
        axis: Of the profile.
    """
    yield _named("process_name", REQUESTS_PID, 0, "requests")
    yield _sorted_at(REQUESTS_PID, -1)
    for number, trace in enumerate(traces, start=1):
        first_tid = number * LANES_PER_REQUEST
        lanes = lanes_of(trace.spans)[:LANES_PER_REQUEST]
        for lane, spans in enumerate(lanes):
            tid = first_tid + lane
            yield _named("thread_name", REQUESTS_PID, tid, trace.request.id)
            for span in spans:
                times = span.start_ns - unix_offset_ns, span.end_ns - unix_offset_ns
                yield _complete(span.name, (REQUESTS_PID, tid), times, axis) | {
                    "args": {
                        "process": span.process,
                        "trace_id": trace.request.trace_id,
                        "span_id": span.span_id,
                        **span.attributes,
                    }
                }


def lanes_of(spans: Iterable[Span]) -> list[list[Span]]:
    """Spread spans over lanes so that in each lane they nest: a viewer draws no others."""
    lanes: list[list[Span]] = []
    open_spans: list[list[Span]] = []
    for span in sorted(spans, key=lambda each: (each.start_ns, -each.end_ns)):
        for lane, stack in zip(lanes, open_spans, strict=True):
            while stack and stack[-1].end_ns <= span.start_ns:
                stack.pop()
            if not stack or span.end_ns <= stack[-1].end_ns:
                lane.append(span)
                stack.append(span)
                break
        else:
            lanes.append([span])
            open_spans.append([span])
    return lanes


def _parts(step: RecordedStep, end_ns: int) -> Iterator[tuple[str, int, int]]:
    """Yield the parts of a step that is over; a stage that was not told makes no cut."""
    stages = (step.planned_ns, step.built_ns, step.forwarded_ns, step.sampled_ns, end_ns)
    start_ns = step.start_ns
    for part, stage_ns in zip(STEP_PARTS, stages, strict=True):
        if stage_ns is not None:
            yield part, start_ns, stage_ns
            start_ns = stage_ns


def _complete(name: str, place: tuple[int, int], times: tuple[int, int], axis: Axis) -> Event:
    start_us = axis.us(times[0])
    return {
        "ph": "X",
        "cat": "quarterdeck",
        "name": name,
        "pid": place[0],
        "tid": place[1],
        "ts": start_us,
        "dur": round(max(0.0, axis.us(times[1]) - start_us), 3),
    }


def _named(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _sorted_at(pid: int, index: int) -> Event:
    return {
        "ph": "M",
        "name": "process_sort_index",
        "pid": pid,
        "tid": 0,
        "args": {"sort_index": index},
    }
