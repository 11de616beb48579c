"""Builds the spans of utility calls and of the operations that they serve.

A call is an RPC: CLIENT span around the call's send, SERVER span around what the engine did until
its reply left. The four message spans hang below them: one tree per call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from appliance.supervisor.admin.schemas import Operation
from appliance.telemetry import names
from appliance.telemetry.hop_join import CALL, CALL_NS, LONELY_NS, Hop
from appliance.telemetry.message_spans import message_spans
from appliance.telemetry.span_data import Attributes, SpanData, present
from appliance.telemetry.wall_clock import WallClock
from engine.wire.header import new_span_id
from engine.wire.hops import HopSent

ENDED = ("done", "failed", "canceled")
MAX_OPERATIONS = 1000
MAX_CALLS = 4096
NS_PER_S = 1e9
SUPERVISOR = "supervisor"


@dataclass(slots=True)
class _Call:
    """A call whose story is not complete."""

    since_ns: int
    hop: Hop | None = None
    reply: Hop | None = None


@dataclass(slots=True)
class _Root:
    """The root span of an operation's trace; the hops of its calls may come after its end."""

    span_id: str = field(default_factory=new_span_id)
    start_ns: int | None = None
    """When its first call was sent."""


class RpcSpans:
    """Collects calls and replies and emits the spans of each call at once.

    Args:
        emit: Takes finished spans.
        clock: Turns an operation's times into readings.
    """

    def __init__(self, emit: Callable[[Sequence[SpanData]], None], clock: WallClock) -> None:
        self._emit = emit
        self._clock = clock
        self._calls: dict[str, _Call] = {}
        self._roots: dict[str, _Root] = {}
        self.on_call: Callable[[str, float], None] = lambda _method, _seconds: None
        """Told the duration of each call when it ended."""
        self.dropped = 0
        """Calls that were not waited for any longer because too many were open."""

    def hop(self, hop: Hop, now_ns: int) -> None:
        """Take the hop of a `UtilityCall` or a `UtilityReply` whose send is known."""
        assert hop.sent is not None
        if len(self._calls) > MAX_CALLS:
            self.dropped += 1
            self._finish(next(iter(self._calls)), now_ns, "too_many_calls")
        if hop.sent.message == CALL:
            call = self._calls.setdefault(hop.sent.span_id, _Call(now_ns))
            call.hop = hop
            finished = call.reply is not None or hop.lost is not None
            span_id = hop.sent.span_id
        else:
            span_id = self._call_of(hop.sent)
            call = self._calls.setdefault(span_id, _Call(now_ns))
            call.reply = hop
            finished = call.hop is not None
        if finished:
            self._finish(span_id, now_ns, None)

    def operation(self, operation: Operation) -> None:
        """Take an operation's state; its span is emitted at its end."""
        root = self._roots.setdefault(operation.trace_id, _Root())
        if len(self._roots) > MAX_OPERATIONS:
            del self._roots[next(iter(self._roots))]
        if operation.state in ENDED:
            self._emit([self._operation_span(operation, root)])

    def sent(self, sent: HopSent) -> None:
        """Take the sender's half of a call as soon as it is known.

        The context of an operation's first call is that of the operation's root span.
        """
        root = self._roots.get(sent.trace_id)
        if root is not None and root.start_ns is None:
            root.start_ns = sent.start_ns
            root.span_id = sent.parent_id or root.span_id

    def died(self, engine_id: str, now_ns: int) -> None:
        """An engine is gone: its calls end here."""
        for span_id, call in list(self._calls.items()):
            sent = call.hop.sent if call.hop is not None else None
            if sent is not None and sent.destination == engine_id:
                self._finish(span_id, now_ns, "engine_died")

    def expire(self, now_ns: int) -> None:
        """End calls that have waited too long."""
        for span_id, call in list(self._calls.items()):
            patience_ns = LONELY_NS if call.hop is None else CALL_NS
            if now_ns - call.since_ns > patience_ns:
                self._finish(span_id, now_ns, "no_reply")

    def finish(self, now_ns: int) -> None:
        """Emit all that waits; the end of the hub."""
        for span_id in list(self._calls):
            self._finish(span_id, now_ns, "no_reply")

    def _call_of(self, reply: HopSent) -> str:
        """Return the send span id of the call that this reply answers."""
        if reply.parent_id is not None and reply.parent_id in self._calls:
            return reply.parent_id
        for span_id, call in self._calls.items():
            sent = call.hop.sent if call.hop is not None else None
            if sent is not None and (sent.trace_id, sent.call) == (reply.trace_id, reply.call):
                return span_id
        return reply.parent_id or reply.span_id

    def _finish(self, span_id: str, now_ns: int, error: str | None) -> None:
        call = self._calls.pop(span_id)
        if call.hop is None:
            assert call.reply is not None
            self._emit(message_spans(call.reply))
            return
        spans = self._call_spans(call.hop, call.reply, now_ns, error)
        self.on_call(spans[0].name, (spans[0].end_ns - spans[0].start_ns) / NS_PER_S)
        self._emit(spans)

    def _call_spans(
        self, hop: Hop, reply: Hop | None, now_ns: int, error: str | None
    ) -> list[SpanData]:
        sent = hop.sent
        assert sent is not None
        client = _rpc_span(sent, "client", sent.sender)
        client.parent_id = sent.parent_id if sent.trace_id in self._roots else None
        client.end_ns = _client_end_ns(hop, reply, now_ns)
        client.error = hop.lost or error
        spans = [client, *message_spans(hop)]
        spans[1].parent_id = client.span_id
        if reply is not None and reply.sent is not None:
            spans += _served(hop, reply, sent, reply.sent)
        if client.error is not None:
            client.attributes[names.ERROR_TYPE] = client.error
        return spans

    def _operation_span(self, operation: Operation, root: _Root) -> SpanData:
        start_ns = self._clock.reading_ns(operation.created_at)
        ended = operation.ended_at
        end_ns = start_ns if ended is None else self._clock.reading_ns(ended)
        if root.start_ns is not None:
            start_ns = min(start_ns, root.start_ns)
        error = operation.state if operation.state != "done" else None
        return SpanData(
            trace_id=operation.trace_id,
            span_id=root.span_id,
            parent_id=None,
            name=f"operation {operation.kind}",
            kind="internal",
            process=SUPERVISOR,
            start_ns=start_ns,
            end_ns=max(start_ns, end_ns),
            attributes=present(
                {
                    names.OPERATION_ID: operation.id,
                    names.OPERATION_TARGET: operation.target,
                    names.OPERATION_ACTOR: operation.actor,
                    names.OPERATION_STATE: operation.state,
                    names.ERROR_TYPE: error,
                }
            ),
            error=error,
        )


def _served(hop: Hop, reply: Hop, call: HopSent, answer: HopSent) -> list[SpanData]:
    server = _rpc_span(call, "server", call.destination)
    server.parent_id = call.span_id
    if hop.received is not None:
        server.start_ns = hop.received.dequeued_ns
    server.end_ns = max(server.start_ns, answer.sent_ns)
    messages = message_spans(reply)
    messages[0].parent_id = server.span_id
    for message in messages:
        message.trace_id = call.trace_id
    return [server, *messages]


def _client_end_ns(hop: Hop, reply: Hop | None, now_ns: int) -> int:
    if reply is not None and reply.received is not None:
        return reply.received.done_ns
    if reply is not None and reply.sent is not None:
        return reply.sent.sent_ns
    return hop.lost_ns or now_ns


def _rpc_span(sent: HopSent, kind: str, process: str) -> SpanData:
    method = sent.call or "_OTHER"
    attributes: Attributes = {
        names.RPC_SYSTEM: names.SERVICE_NAME,
        names.RPC_METHOD: method,
        names.SERVER_ADDRESS: sent.destination,
    }
    return SpanData(
        trace_id=sent.trace_id,
        span_id=new_span_id(),
        parent_id=None,
        name=method,
        kind="client" if kind == "client" else "server",
        process=process,
        start_ns=sent.start_ns,
        end_ns=sent.start_ns,
        attributes=attributes,
        flags=sent.flags,
    )
