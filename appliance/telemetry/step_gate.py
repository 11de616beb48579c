"""Holds the steps of engines back from the export until it is known who wants them.

A step serves many requests; it is exported when one of them is. Whether a request is kept may be
known only at its end, so the facts of recent steps wait here, within a bound; a step's own span
waits a moment at any rate, for the messages whose requests it is linked to.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from appliance.telemetry.hop_join import Hop
from appliance.telemetry.message_spans import message_spans, step_span
from appliance.telemetry.sampling import Sampler
from appliance.telemetry.span_data import SpanData
from engine.wire.hops import HopLink, StepRecord

MAX_STEPS = 4096
RIPE_NS = 1_000_000_000
"""So long a step waits for its messages, which engines and gateways report in batches."""


@dataclass(slots=True, eq=False)
class _Step:
    trace_id: str
    since_ns: int
    record: StepRecord | None = None
    outputs: list[Hop] = field(default_factory=list)
    """Those that are not exported yet."""
    links: dict[str, HopLink] = field(default_factory=dict)
    """The requests that it serves, by trace id."""
    undecided: int = 0
    """Requests among them that may still turn out to be kept."""
    is_wanted: bool = False
    is_ripe: bool = False
    is_gone: bool = False


class StepGate:
    """Lets the steps of kept requests through.

    Args:
        sampler: Knows which requests are kept at any rate.
        export: Takes the spans that go out.
        max_steps: So many wait for a request that wants them.
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
        self._unripe: deque[_Step] = deque()
        self._serving: dict[str, deque[_Step]] = {}
        """Steps that wait, by the trace id of a request that they serve."""
        self._decided: dict[str, bool] = {}
        """Whether a request is kept, by its trace id, of the last that ended."""
        self.dropped = 0
        """Steps whose requests were not decided on when their place was needed."""

    def __len__(self) -> int:
        return len(self._steps)

    def output(self, hop: Hop, now_ns: int) -> None:
        """Take a message of a step."""
        assert hop.sent is not None
        step = self._step(hop.sent.trace_id, now_ns)
        step.outputs.append(hop)
        self._link(step, hop.sent.links)
        self._let_through(step)

    def step(self, record: StepRecord, now_ns: int) -> None:
        """Take a step's record."""
        step = self._step(record.trace_id, now_ns)
        step.record = record
        self._link(step, record.links)
        self._let_through(step)

    def keep(self, trace_id: str) -> None:
        """A request is kept: the steps that served it go out too."""
        self._decide(trace_id, kept=True)
        for step in self._serving.pop(trace_id, ()):
            step.is_wanted = True
            self._let_through(step)

    def forget(self, trace_id: str) -> None:
        """A request ended and is not kept."""
        self._decide(trace_id, kept=False)
        for step in self._serving.pop(trace_id, ()):
            step.undecided -= 1
            self._let_through(step)

    def expire(self, now_ns: int) -> None:
        """Let the spans of steps go whose messages have had their time."""
        while self._unripe and now_ns - self._unripe[0].since_ns >= RIPE_NS:
            step = self._unripe.popleft()
            step.is_ripe = True
            self._let_through(step)

    def finish(self) -> None:
        """Let everything go that is wanted; the end of the hub, or of the export."""
        for step in list(self._steps.values()):
            step.is_ripe = True
            self._let_through(step)
        self._steps.clear()
        self._serving.clear()
        self._unripe.clear()

    def _decide(self, trace_id: str, *, kept: bool) -> None:
        self._decided[trace_id] = kept or self._decided.get(trace_id, False)
        if len(self._decided) > self._max_steps:
            del self._decided[next(iter(self._decided))]

    def _step(self, trace_id: str, now_ns: int) -> _Step:
        step = self._steps.get(trace_id)
        if step is None:
            step = _Step(trace_id, now_ns, is_wanted=self._sampler.keeps_all)
            self._steps[trace_id] = step
            self._unripe.append(step)
            if len(self._steps) > self._max_steps:
                self._give_up(next(iter(self._steps.values())))
        return step

    def _link(self, step: _Step, links: Iterable[HopLink]) -> None:
        for link in links:
            trace_id = link.context.trace_id
            if trace_id == step.trace_id or trace_id in step.links:
                continue
            step.links[trace_id] = link
            if step.is_wanted:
                continue
            if self._is_kept(link):
                step.is_wanted = True
            elif trace_id not in self._decided:
                step.undecided += 1
                self._serving.setdefault(trace_id, deque()).append(step)

    def _let_through(self, step: _Step) -> None:
        """Export what is there, if it is wanted; forget it once nothing can change any more."""
        spans: list[SpanData] = []
        if step.is_wanted:
            outputs, step.outputs = step.outputs, []
            spans = [span for hop in outputs for span in message_spans(hop)]
        if step.is_ripe and not step.is_gone:
            if step.is_wanted and step.record is not None:
                spans.append(step_span(step.record, self._ordered(step)))
                self._remove(step)
            elif not step.is_wanted and not step.undecided:
                self._remove(step)
        if spans:
            self._export(spans)

    def _ordered(self, step: _Step) -> list[HopLink]:
        """Return the links, those to requests that are kept first: they survive a cut."""
        return sorted(step.links.values(), key=lambda link: not self._is_kept(link))

    def _is_kept(self, link: HopLink) -> bool:
        return self._decided.get(link.context.trace_id, False) or self._sampler.wants(link)

    def _give_up(self, step: _Step) -> None:
        """Make room."""
        step.is_ripe = True
        self._let_through(step)
        if step.is_gone:
            return
        self.dropped += not step.is_wanted
        self._remove(step)
        for trace_id in step.links:
            waiting = self._serving.get(trace_id)
            while waiting and waiting[0].is_gone:
                waiting.popleft()
            if waiting is not None and not waiting:
                del self._serving[trace_id]

    def _remove(self, step: _Step) -> None:
        del self._steps[step.trace_id]
        step.is_gone = True
        step.outputs, step.record = [], None
