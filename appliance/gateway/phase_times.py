"""How long the phases of a request took that are not the engine's own."""

from collections.abc import Iterator

from appliance.gateway.journey import Journey


def phase_times(journey: Journey) -> Iterator[tuple[str, int]]:
    """Yield the phases that an ended request has passed, each with its nanoseconds.

    The boundaries are those of its trace: `appliance.telemetry.phases`.
    """
    context = journey.context
    at_ns = context.received_ns
    for phase, end_ns in (
        ("auth", context.authenticated_ns),
        ("admission", journey.admitted_ns),
        ("tokenize", journey.tokenized_ns),
    ):
        if end_ns is None:
            return
        yield phase, max(0, end_ns - at_ns)
        at_ns = end_ns
    yield from _around_the_engine(journey)


def _around_the_engine(journey: Journey) -> Iterator[tuple[str, int]]:
    """Yield `dispatch` of each choice that an engine took, and `stream`, after the last token."""
    start_ns, ended_ns = journey.tokenized_ns, journey.context.ended_ns
    timelines = [choice.timeline for choice in journey.choices if choice.timeline is not None]
    for timeline in timelines:
        if start_ns is not None:
            yield "dispatch", max(0, timeline.received_ns - start_ns)
    made_ns = [t.finished_ns for t in timelines if t.finished_ns is not None]
    if made_ns and ended_ns is not None:
        yield "stream", max(0, ended_ns - max(made_ns))
