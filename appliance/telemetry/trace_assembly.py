"""Puts hops, steps and request records together into traces, and sends each where it belongs.

Facts go to the local store as they come. For the export, the messages of a request wait for its
record: only then is it known whether the trace goes out and under which phase they belong, and
only then spans are built.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from appliance.telemetry import names
from appliance.telemetry.hop_join import CALL, Hop
from appliance.telemetry.message_spans import message_spans
from appliance.telemetry.placement import adopt, claim, place
from appliance.telemetry.records import RequestRecord
from appliance.telemetry.rpc_spans import RpcSpans
from appliance.telemetry.sampling import Sampler
from appliance.telemetry.span_data import SpanData
from appliance.telemetry.spans import request_spans
from appliance.telemetry.step_gate import LOST_NS, StepGate
from appliance.telemetry.trace_store import TraceStore
from appliance.telemetry.wall_clock import WallClock
from engine.wire.hops import HopSent, StepRecord

HOLD_NS = 3_000_000_000
"""How long messages wait for a record when no request of their trace runs."""
MAX_HELD = 20_000
MAX_DECIDED = 4096
CALLS = ("UtilityCall", "UtilityReply")
OUTPUTS = "EngineOutputs"
TakeSpans = Callable[[Sequence[SpanData]], None]


@dataclass(slots=True)
class _Held:
    since_ns: int
    hops: list[Hop] = field(default_factory=list)


@dataclass(slots=True)
class _Decided:
    """What later messages of a trace whose requests ended need to know."""

    root_id: str | None = None
    """Of the request, if it is exported."""
    dispatch_of: dict[str, str] = field(default_factory=dict[str, str])
    known: set[str] = field(default_factory=set[str])
    """Spans that were exported."""
    is_alone: bool = True
    """The trace had one request."""

    def owns(self, sent: HopSent) -> bool:
        """Whether a message is known to belong to what was exported."""
        return sent.span_id in self.dispatch_of or sent.parent_id in self.known

    def place(self, spans: list[SpanData]) -> None:
        """Hang late messages where they belong."""
        place(spans, self.dispatch_of)
        adopt(spans, self.known, self.root_id if self.is_alone else None)
        self.known.update(span.span_id for span in spans)


class TraceAssembly:
    """Assembles traces.

    Args:
        store: Takes every fact.
        export: Takes the spans of the traces that are kept.
        sampler: Decides which those are.
        clock: Of the hub.
        is_live: Whether a request with this trace id still runs.
    """

    def __init__(
        self,
        store: TraceStore,
        export: TakeSpans,
        sampler: Sampler,
        clock: WallClock,
        is_live: Callable[[str], bool],
    ) -> None:
        self._store = store
        self._export = export
        self._sampler = sampler
        self._is_live = is_live
        self.gate = StepGate(sampler, export)
        self._held: dict[str, _Held] = {}
        self.num_held = 0
        self._decided: dict[str, _Decided] = {}
        self.rpc = RpcSpans(self.emit, clock)
        self.is_exporting = False
        """False: nothing is built or held for the export; see `set_exporting`."""
        self.dropped = 0
        """Messages whose request was not waited for any longer because too many were held."""

    def set_exporting(self, exporting: bool) -> None:
        """Begin or end to export; what waits at the end still goes out."""
        if self.is_exporting and not exporting:
            self.gate.finish()
        self.is_exporting = exporting

    def emit(self, spans: Sequence[SpanData]) -> None:
        """Store and export spans that need no decision."""
        self._store.add_spans(spans)
        if self.is_exporting:
            self._export(spans)

    def sent(self, half: HopSent, now_ns: int) -> None:
        """Take the sender's half of a message as soon as it is known."""
        if half.message == CALL:
            self.rpc.sent(half)
        elif (
            half.message == OUTPUTS and self.is_exporting and not self._is_of_request(half.trace_id)
        ):
            self.gate.sent(half, now_ns)

    def hop(self, hop: Hop, now_ns: int) -> None:
        """Take a hop that is complete, or lost."""
        sent = hop.sent
        if sent is None:
            self._store.add_hop(hop)
            if self.is_exporting:
                self._export(message_spans(hop))
        elif sent.message == OUTPUTS and not self._is_of_request(sent.trace_id):
            self._store.add_output(hop)
            if self.is_exporting:
                self.gate.output(hop)
        elif sent.message in CALLS:
            self.rpc.hop(hop, now_ns)
        else:
            self._store.add_hop(hop)
            self._request_message(hop, sent.trace_id, now_ns)

    def step(self, step: StepRecord, now_ns: int) -> None:
        """Take a step's record."""
        self._store.add_step(step)
        if self.is_exporting:
            self.gate.step(step, now_ns)

    def record(self, record: RequestRecord, headline: str) -> str | None:
        """Take an ended request; returns why its trace is exported, None: it is not."""
        self._store.add_request(record, headline)
        if not self.is_exporting:
            self._leave_out(record.trace_id)
            return None
        reason = self._sampler.reason(record)
        if reason is None:
            self.gate.forget(record.trace_id)
            self._leave_out(record.trace_id)
        else:
            self.gate.keep(record.trace_id)
            self._export_request(record, reason)
        return reason

    def held(self, trace_id: str) -> list[SpanData]:
        """Return the messages of a live request so far."""
        held = self._held.get(trace_id)
        hops = held.hops if held is not None else ()
        return [span for hop in hops for span in message_spans(hop)]

    def expire(self, now_ns: int) -> None:
        """Let go of messages whose request's record did not come."""
        for trace_id, held in list(self._held.items()):
            if now_ns - held.since_ns < HOLD_NS:
                break  # in order of arrival
            if not self._is_live(trace_id):
                self._release(trace_id)
        self.gate.expire(now_ns)
        self.rpc.expire(now_ns)

    def finish(self, now_ns: int) -> None:
        """Emit all that waits; the end of the hub."""
        self.rpc.finish(now_ns)
        self.gate.expire(now_ns + LOST_NS)
        self.gate.finish()
        for trace_id in list(self._held):
            self._release(trace_id)

    def _is_of_request(self, trace_id: str) -> bool:
        """Whether an output message stands in a request's trace: a rejection, before any step."""
        return trace_id in self._held or trace_id in self._decided or self._is_live(trace_id)

    def _request_message(self, hop: Hop, trace_id: str, now_ns: int) -> None:
        decided = self._decided.get(trace_id)
        if decided is not None and self._is_decided(hop, decided, trace_id):
            if decided.root_id is not None and self.is_exporting:
                spans = message_spans(hop)
                decided.place(spans)
                self._export(spans)
            return
        self._held.setdefault(trace_id, _Held(now_ns)).hops.append(hop)
        self.num_held += 1
        if self.num_held > MAX_HELD:
            self.dropped += 1
            self._release(next(iter(self._held)))

    def _is_decided(self, hop: Hop, decided: _Decided, trace_id: str) -> bool:
        """Whether it is known what becomes of a message: its request ended, its parent is there."""
        assert hop.sent is not None
        if decided.owns(hop.sent):
            return True
        return decided.root_id is None and decided.is_alone and not self._is_live(trace_id)

    def _export_request(self, record: RequestRecord, reason: str) -> None:
        """Export an ended request with the messages that are its own."""
        built = request_spans(record)
        built.spans[0].attributes[names.SAMPLING_REASON] = reason
        held = self._held.pop(record.trace_id, None)
        messages: list[SpanData] = []
        if held is not None:
            self.num_held -= len(held.hops)
            spans = [span for hop in held.hops for span in message_spans(hop)]
            messages, others = claim(built, spans, is_alone=False)
            self._hold_again(record, held, others)
        whole = [*built.spans, *messages]
        self._export(whole)
        known = {span.span_id for span in whole}
        decided = _Decided(built.spans[0].span_id, built.dispatch_of, known)
        self._decide(record.trace_id, decided)

    def _hold_again(self, record: RequestRecord, held: _Held, others: list[SpanData]) -> None:
        """What belongs to another request of the trace, or to a message on its way, waits."""
        ids = {span.span_id for span in others}
        hops = [hop for hop in held.hops if hop.sent is not None and hop.sent.span_id in ids]
        if hops:
            self._held[record.trace_id] = _Held(record.ended_ns, hops)
            self.num_held += len(hops)

    def _leave_out(self, trace_id: str) -> None:
        """A request is not exported: its messages need not wait, unless another one runs."""
        self._decide(trace_id, _Decided())
        if not self._is_live(trace_id):
            held = self._held.pop(trace_id, None)
            self.num_held -= len(held.hops) if held is not None else 0

    def _decide(self, trace_id: str, decided: _Decided) -> None:
        before = self._decided.pop(trace_id, None)
        if before is not None:
            decided.is_alone = False
            decided.root_id = decided.root_id or before.root_id
            decided.dispatch_of |= before.dispatch_of
            decided.known |= before.known
        self._decided[trace_id] = decided
        if len(self._decided) > MAX_DECIDED:
            del self._decided[next(iter(self._decided))]

    def _release(self, trace_id: str) -> None:
        held = self._held.pop(trace_id)
        self.num_held -= len(held.hops)
        decided = self._decided.get(trace_id, _Decided())
        is_kept = decided.root_id is not None or self._sampler.by_trace_id(trace_id)
        if self.is_exporting and is_kept:
            spans = [span for hop in held.hops for span in message_spans(hop)]
            decided.place(spans)
            self._export(spans)
