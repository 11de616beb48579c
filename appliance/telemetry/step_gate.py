"""Holds the spans of steps back from the export until it is known who wants them.

A step serves many requests; it is exported when one of them is. Whether a request is kept may be
known only at its end, so recent steps wait here, within a bound.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from appliance.telemetry.sampling import Sampler
from appliance.telemetry.span_data import SpanData
from engine.wire.header import SAMPLED

MAX_STEPS = 4096


@dataclass(slots=True)
class _Step:
    spans: list[SpanData] = field(default_factory=list)
    requests: set[str] = field(default_factory=set)
    """Trace ids of the requests that its messages serve."""
    exported: bool = False


class StepGate:
    """Lets the steps of kept requests through.

    Args:
        sampler: Keeps by trace id at once.
        export: Takes the spans that go out.
    """

    def __init__(
        self,
        sampler: Sampler,
        export: Callable[[Sequence[SpanData]], None],
        max_steps: int = MAX_STEPS,
    ) -> None:
        self._sampler = sampler
        self._export = export
        self._max_steps = max_steps
        self._steps: dict[str, _Step] = {}
        self._kept: dict[str, None] = {}

    def add(self, spans: Sequence[SpanData]) -> None:
        """Take spans of one step's trace."""
        if self._sampler.keeps_all:
            self._export(spans)
            return
        step = self._steps.setdefault(spans[0].trace_id, _Step())
        step.spans.extend(spans)
        wanted = step.exported
        for link in spans[0].links:
            trace_id = link.context.trace_id
            step.requests.add(trace_id)
            wanted = wanted or trace_id in self._kept
            wanted = wanted or bool(link.context.flags & SAMPLED)
            wanted = wanted or self._sampler.by_trace_id(trace_id)
        if wanted:
            self._let_through([step])
        _shrink(self._steps, self._max_steps)

    def keep(self, trace_id: str) -> None:
        """A request is kept: the steps that served it go out too."""
        if self._sampler.keeps_all:
            return
        self._kept[trace_id] = None
        _shrink(self._kept, self._max_steps)
        self._let_through(step for step in self._steps.values() if trace_id in step.requests)

    def _let_through(self, steps: Iterable[_Step]) -> None:
        for step in steps:
            step.exported = True
            spans, step.spans = step.spans, []
            if spans:
                self._export(spans)


def _shrink(entries: dict[str, _Step] | dict[str, None], limit: int) -> None:
    while len(entries) > limit:
        del entries[next(iter(entries))]
