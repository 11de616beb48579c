"""Puts hops, steps and request records together into traces, and sends each where it belongs.

Everything goes to the local store. The messages of a request wait for its record: only then is
it known under which phase they belong and whether the trace is exported.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from appliance.telemetry.hop_join import Hop
from appliance.telemetry.message_spans import message_spans, step_span
from appliance.telemetry.records import RequestRecord
from appliance.telemetry.rpc_spans import RpcSpans
from appliance.telemetry.sampling import Sampler
from appliance.telemetry.span_data import SpanData
from appliance.telemetry.spans import request_spans
from appliance.telemetry.step_gate import StepGate
from appliance.telemetry.wall_clock import WallClock
from engine.wire.hops import StepRecord

HOLD_NS = 3_000_000_000
"""How long messages wait for a record when no request of their trace runs."""
MAX_HELD = 20_000
MAX_DECIDED = 4096
SAMPLING_REASON = "quarterdeck.sampling.reason"
CALLS = ("UtilityCall", "UtilityReply")
TakeSpans = Callable[[Sequence[SpanData]], None]


@dataclass(slots=True)
class _Held:
    since_ns: int
    spans: list[SpanData] = field(default_factory=list)


@dataclass(slots=True)
class _Decided:
    """What later messages of an ended request's trace need to know."""

    exported: bool
    dispatch_of: dict[str, str]


class TraceAssembly:
    """Assembles traces.

    Args:
        store: Takes every span.
        export: Takes the spans of the traces that are kept.
        sampler: Decides which those are.
        clock: Of the hub.
        is_live: Whether a request with this trace id still runs.
    """

    def __init__(
        self,
        store: TakeSpans,
        export: TakeSpans,
        sampler: Sampler,
        clock: WallClock,
        is_live: Callable[[str], bool],
    ) -> None:
        self._store = store
        self._export = export
        self._sampler = sampler
        self._is_live = is_live
        self._gate = StepGate(sampler, export)
        self._held: dict[str, _Held] = {}
        self._num_held = 0
        self._decided: dict[str, _Decided] = {}
        self.rpc = RpcSpans(self.emit, clock)
        self.dropped = 0
        """Messages whose request was not waited for any longer because too many were held."""

    def emit(self, spans: Sequence[SpanData]) -> None:
        """Store and export spans that need no decision."""
        self._store(spans)
        self._export(spans)

    def hop(self, hop: Hop, now_ns: int) -> None:
        """Take a hop that is complete, or lost."""
        sent = hop.sent
        if sent is None:
            self.emit(message_spans(hop))
        elif sent.message in CALLS:
            self.rpc.hop(hop, now_ns)
        elif sent.message == "EngineOutputs" and not self._is_of_request(sent.trace_id):
            spans = message_spans(hop)
            self._store(spans)
            self._gate.add(spans)
        else:
            self._request_message(message_spans(hop), now_ns)

    def step(self, step: StepRecord) -> None:
        """Take a step's record."""
        spans = [step_span(step)]
        self._store(spans)
        self._gate.add(spans)

    def record(self, record: RequestRecord) -> int:
        """Take an ended request; returns how many spans it has so far."""
        built = request_spans(record)
        reason = self._sampler.reason(record)
        if reason is not None:
            built.spans[0].attributes[SAMPLING_REASON] = reason
            self._gate.keep(record.trace_id)
        messages = self._claim(record.trace_id, built.spans, built.dispatch_of)
        spans = [*built.spans, *messages]
        self._store(spans)
        if reason is not None:
            self._export(spans)
        self._decide(record.trace_id, _Decided(reason is not None, built.dispatch_of))
        return len(spans)

    def held(self, trace_id: str) -> list[SpanData]:
        """Return the messages that wait for the record of a live request."""
        held = self._held.get(trace_id)
        return list(held.spans) if held is not None else []

    def expire(self, now_ns: int) -> None:
        """Let go of messages whose request's record did not come."""
        for trace_id, held in list(self._held.items()):
            if now_ns - held.since_ns < HOLD_NS:
                break  # in order of arrival
            if not self._is_live(trace_id):
                self._release(trace_id)
        self.rpc.expire(now_ns)

    def finish(self, now_ns: int) -> None:
        """Emit all that waits; the end of the hub."""
        self.rpc.finish(now_ns)
        for trace_id in list(self._held):
            self._release(trace_id)

    def _is_of_request(self, trace_id: str) -> bool:
        """Whether an output message stands in a request's trace: a rejection, before any step."""
        return trace_id in self._held or trace_id in self._decided or self._is_live(trace_id)

    def _request_message(self, spans: list[SpanData], now_ns: int) -> None:
        trace_id = spans[0].trace_id
        decided = self._decided.get(trace_id)
        if decided is not None and not self._is_live(trace_id):
            _place(spans, decided.dispatch_of)
            self._store(spans)
            if decided.exported:
                self._export(spans)
            return
        self._held.setdefault(trace_id, _Held(now_ns)).spans.extend(spans)
        self._num_held += len(spans)
        if self._num_held > MAX_HELD:
            self.dropped += 1
            self._release(next(iter(self._held)))

    def _claim(
        self, trace_id: str, spans: list[SpanData], dispatch_of: dict[str, str]
    ) -> list[SpanData]:
        """Take the held messages that hang below `spans`; all, if no other request wants them."""
        held = self._held.pop(trace_id, None)
        if held is None:
            return []
        self._num_held -= len(held.spans)
        _place(held.spans, dispatch_of)
        known = {span.span_id for span in spans}
        mine: list[SpanData] = []
        others: list[SpanData] = []
        for span in sorted(held.spans, key=_start):  # parents first
            if span.parent_id in known:
                known.add(span.span_id)
                mine.append(span)
            else:
                others.append(span)
        if self._is_live(trace_id):
            self._hold_again(trace_id, held.since_ns, others)
            return mine
        _adopt(others, known, spans[0].span_id)
        return mine + others

    def _hold_again(self, trace_id: str, since_ns: int, spans: list[SpanData]) -> None:
        if spans:
            self._held[trace_id] = _Held(since_ns, spans)
            self._num_held += len(spans)

    def _decide(self, trace_id: str, decided: _Decided) -> None:
        before = self._decided.pop(trace_id, None)
        if before is not None:
            decided.exported = decided.exported or before.exported
            decided.dispatch_of |= before.dispatch_of
        self._decided[trace_id] = decided
        if len(self._decided) > MAX_DECIDED:
            del self._decided[next(iter(self._decided))]

    def _release(self, trace_id: str) -> None:
        held = self._held.pop(trace_id)
        self._num_held -= len(held.spans)
        _adopt(held.spans, set(), None)
        self._store(held.spans)
        if self._sampler.by_trace_id(trace_id):
            self._export(held.spans)


def _start(span: SpanData) -> int:
    return span.start_ns


def _place(spans: list[SpanData], dispatch_of: dict[str, str]) -> None:
    """Hang the sends of `AddRequest` below their `dispatch` phase."""
    for span in spans:
        span.parent_id = dispatch_of.get(span.span_id, span.parent_id)


def _adopt(spans: list[SpanData], known: set[str], root_id: str | None) -> None:
    """Give spans whose parent nobody knows a place below the root; None: they are roots."""
    known = known | {span.span_id for span in spans}
    for span in spans:
        if span.parent_id not in known:
            span.parent_id = root_id
