"""The phases of a request: they begin where the one before ended and tile it without a gap.

A phase that was not reached is absent; the one in which the request ended runs to its end.
Boundaries that come out of order (clocks of two processes, a late stamp) are clamped.
"""

from collections.abc import Sequence
from typing import NamedTuple

from appliance.telemetry.records import ChoiceRecord, RequestRecord


class Phase(NamedTuple):
    """One phase; times are `engine.clock` readings."""

    name: str
    start_ns: int
    end_ns: int


Bounds = Sequence[tuple[str, int | None]]
"""Names with the end of each; None: the request ended in it, or before."""


def tile(start_ns: int, bounds: Bounds, end_ns: int) -> list[Phase]:
    """Lay phases from `start_ns` on; the first one without an end runs to `end_ns`."""
    phases: list[Phase] = []
    at_ns = start_ns
    for name, bound_ns in bounds:
        until_ns = max(at_ns, min(end_ns if bound_ns is None else bound_ns, end_ns))
        phases.append(Phase(name, at_ns, until_ns))
        at_ns = until_ns
        if bound_ns is None:
            break
    return phases


def front_phases(record: RequestRecord) -> list[Phase]:
    """Return `auth`, `admission` and `tokenize`, as far as the request came."""
    bounds = [
        ("auth", record.authenticated_ns),
        ("admission", record.admitted_ns),
        ("tokenize", record.tokenized_ns),
    ]
    last = max((i for i, (_, bound) in enumerate(bounds) if bound is not None), default=-1)
    reached = [bound for i, bound in enumerate(bounds) if bound[1] is not None or i > last]
    return tile(record.received_ns, reached, record.ended_ns)


def chat_start_ns(record: RequestRecord) -> int | None:
    """Return where the front's phases end, None when the request never got there."""
    if record.tokenized_ns is None:
        return None
    return front_phases(record)[-1].end_ns


def chat_end_ns(record: RequestRecord) -> int:
    """Return where generating ended and `stream` begins."""
    ends = [c.timeline.finished_ns for c in record.choices if c.timeline is not None]
    known = [end for end in ends if end is not None]
    if len(record.choices) == 1 and known:
        end_ns = known[0]
    else:
        end_ns = record.last_token_ns or max(known, default=record.ended_ns)
    start_ns = chat_start_ns(record)
    return max(min(end_ns, record.ended_ns), record.received_ns if start_ns is None else start_ns)


def choice_phases(choice: ChoiceRecord | None, start_ns: int, end_ns: int) -> list[Phase]:
    """Return `dispatch`, `queue`, `prefill` and `decode` of one engine request.

    None, or a choice without a timeline, is one that an engine never told of: all `dispatch`.
    """
    timeline = choice.timeline if choice is not None else None
    if timeline is None:
        return [Phase("dispatch", start_ns, end_ns)]
    stop_ns = end_ns if timeline.finished_ns is None else min(timeline.finished_ns, end_ns)
    bounds = [
        ("dispatch", timeline.received_ns),
        ("queue", timeline.scheduled_ns),
        ("prefill", timeline.first_token_ns),
        ("decode", None),
    ]
    return tile(start_ns, bounds, max(start_ns, stop_ns))
