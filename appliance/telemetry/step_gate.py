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
from appliance.telemetry.placement import adopt
from appliance.telemetry.sampling import Sampler
from appliance.telemetry.span_data import SpanData
from engine.wire.hops import HopLink, HopSent, StepRecord

MAX_STEPS = 4096
RIPE_NS = 1_000_000_000
"""So long a step waits for its messages, which engines report in batches."""
LOST_NS = 30_000_000_000
"""A record that has not come by then died with its engine."""


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
        self._without_record: deque[_Step] = deque()
        self._exported: dict[str, None] = {}
        """The last steps whose span went out, by their trace id: their late messages follow."""
        self._serving: dict[str, deque[_Step]] = {}
        """Steps that wait, by the trace id of a request that they serve."""
        self._decided: dict[str, bool] = {}
        """Whether a request is kept, by its trace id, of the last that ended."""
        self.dropped = 0
        """Steps whose requests were not decided on when their place was needed."""

    def __len__(self) -> int:
        return len(self._steps)

    def sent(self, half: HopSent, now_ns: int) -> None:
        """Take the engine's half of a step's message: it tells whom the step serves.

        The gateway's half, and with it the whole hop, may be long in coming.
        """
        if half.trace_id not in self._exported:
            self._link(self._step(half.trace_id, now_ns), half.links)

    def output(self, hop: Hop) -> None:
        """Take a message of a step, whole or lost, after its `sent`."""
        assert hop.sent is not None
        step = self._steps.get(hop.sent.trace_id)
        if step is not None:
            step.outputs.append(hop)
            self._let_through(step)
        elif hop.sent.trace_id in self._exported:
            self._export(message_spans(hop))

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
            if step.record is None:
                self._without_record.append(step)
        while self._without_record and now_ns - self._without_record[0].since_ns >= LOST_NS:
            step = self._without_record.popleft()
            if step.record is None and not step.is_gone:
                self._give_up(step)

    def finish(self) -> None:
        """Let the steps go that are wanted; the end of the export."""
        for step in list(self._steps.values()):
            step.is_ripe = True
            self._let_through(step)
        self._steps.clear()
        self._serving.clear()
        self._unripe.clear()
        self._without_record.clear()
        self._exported.clear()

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
        """Export what is there, if it is wanted; forget it once nothing can change any more.

        Messages go out below their step's span, so they wait for its record.
        """
        spans: list[SpanData] = []
        if step.is_wanted and step.record is not None:
            spans = [span for hop in step.outputs for span in message_spans(hop)]
            step.outputs = []
            if step.is_ripe and not step.is_gone:
                spans.append(step_span(step.record, self._ordered(step)))
                self._remember(step)
                self._remove(step)
        elif step.is_ripe and not step.is_gone and not step.is_wanted and not step.undecided:
            self._remove(step)
        if spans:
            self._export(spans)

    def _remember(self, step: _Step) -> None:
        self._exported[step.trace_id] = None
        if len(self._exported) > self._max_steps:
            del self._exported[next(iter(self._exported))]

    def _orphans(self, step: _Step) -> None:
        """Export messages of a wanted step whose record was lost: each on its own."""
        if not step.is_wanted or step.record is not None or not step.outputs:
            return
        spans = [span for hop in step.outputs for span in message_spans(hop)]
        adopt(spans, set(), None)
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
        self._orphans(step)
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
