"""A synthetic fleet: makes the reports that gateways, engines and the supervisor would send."""

import itertools
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from appliance.control_link.messages import GatewayAccounts, GatewayRecords
from appliance.telemetry.hub import Hub
from appliance.telemetry.records import (
    AccountsSnapshot,
    ChoiceRecord,
    Outcome,
    RequestAccepted,
    RequestRecord,
)
from engine.wire.header import TraceContext, child_context, new_context, new_span_id
from engine.wire.hops import HopLink, HopReceived, HopSent, StepRecord
from engine.wire.messages import EngineRecords, EngineStats, PrefillChunk, Timeline

MS = 1_000_000
_DIGITS = itertools.count(1)


def new_request_id() -> str:
    return f"req-{next(_DIGITS):024x}"


def timeline(start_ns: int, **changes: object) -> Timeline:
    fields: dict = {
        "received_ns": start_ns,
        "scheduled_ns": start_ns + 2 * MS,
        "first_token_ns": start_ns + 5 * MS,
        "last_token_ns": start_ns + 9 * MS,
        "finished_ns": start_ns + 9 * MS,
        "first_step": 1,
        "last_step": 5,
        "chunks": (
            PrefillChunk(start_ns=start_ns + 2 * MS, end_ns=start_ns + 5 * MS, tokens=7, step=1),
        ),
    }
    return Timeline(**(fields | changes))


def choice(index: int = 0, times: Timeline | None = None, **changes: object) -> ChoiceRecord:
    fields: dict = {
        "engine_request_id": f"{new_request_id()}-{index}",
        "index": index,
        "engine_id": "e0",
        "engine_epoch": 1,
        "send_span_id": new_span_id(),
        "finish_reason": "stop",
        "prompt_tokens": 7,
        "cached_tokens": 0,
        "completion_tokens": 5,
        "timeline": times,
    }
    return ChoiceRecord(**(fields | changes))


def record(received_ns: int = 1000 * MS, **changes: object) -> RequestRecord:
    """A finished chat of 20 ms; the engine had it from 4 to 13 ms."""
    context = new_context()
    fields: dict = {
        "request_id": new_request_id(),
        "trace_id": context.trace_id,
        "span_id": context.span_id,
        "parent_span_id": None,
        "flags": 0,
        "gateway": "gateway-0",
        "gateway_epoch": 1,
        "method": "POST",
        "route": "/v1/chat/completions",
        "operation": "chat",
        "status": 200,
        "outcome": Outcome.FINISHED,
        "error_code": None,
        "error_detail": None,
        "model": "tiny",
        "key_id": "k1",
        "stream": True,
        "prompt_tokens": 7,
        "cached_tokens": 0,
        "completion_tokens": 5,
        "max_tokens": 16,
        "temperature": 0.0,
        "top_p": 1.0,
        "received_ns": received_ns,
        "authenticated_ns": received_ns + 1 * MS,
        "admitted_ns": received_ns + 2 * MS,
        "tokenized_ns": received_ns + 3 * MS,
        "chat_span_id": new_span_id(),
        "held_ns": 0,
        "first_frame_ns": received_ns + 10 * MS,
        "last_token_ns": received_ns + 14 * MS,
        "ended_ns": received_ns + 20 * MS,
        "detokenize_ns": 100,
        "frames": 7,
        "requeues": 0,
        "choices": (choice(0, timeline(received_ns + 4 * MS)),),
    }
    return RequestRecord(**(fields | changes))


def rejected(**changes: object) -> RequestRecord:
    fields: dict = {
        "status": 401,
        "outcome": Outcome.REJECTED,
        "error_code": "invalid_api_key",
        "authenticated_ns": None,
        "admitted_ns": None,
        "tokenized_ns": None,
        "chat_span_id": None,
        "first_frame_ns": None,
        "last_token_ns": None,
        "choices": (),
        "model": None,
    }
    return record(**(fields | changes))


def accepted(of: RequestRecord) -> RequestAccepted:
    return RequestAccepted(
        request_id=of.request_id,
        trace_id=of.trace_id,
        gateway=of.gateway,
        gateway_epoch=of.gateway_epoch,
        route=of.route,
        model=of.model or "tiny",
        key_id=of.key_id,
        stream=of.stream,
        choices=len(of.choices),
        prompt_tokens=of.prompt_tokens,
        max_tokens=of.max_tokens or 0,
        received_ns=of.received_ns,
        accepted_ns=of.received_ns + 3 * MS,
    )


def gateway_records(**changes: object) -> GatewayRecords:
    fields: dict = {"accepted": (), "first_tokens": (), "finished": (), "hops": (), "dropped": 0}
    return GatewayRecords(**(fields | changes))


def gateway_accounts(snapshot: AccountsSnapshot, live: tuple = ()) -> GatewayAccounts:
    return GatewayAccounts(snapshot=snapshot, live=live)


def engine_records(hops: tuple = (), steps: tuple = ()) -> EngineRecords:
    return EngineRecords(hops=hops, steps=steps, dropped=0)


def engine_stats(**changes: object) -> EngineStats:
    fields: dict = {
        "step": 10,
        "running": 1,
        "waiting": 2,
        "sleep_level": 0,
        "num_blocks": 100,
        "used_blocks": 25,
        "resident_bytes": 1 << 20,
        "prompt_tokens": 70,
        "generation_tokens": 50,
        "cached_tokens": 0,
        "preemptions": 0,
        "finished": {},
        "sent": {"EngineOutputs": 4},
        "received": {"AddRequest": 3},
        "fenced": 0,
        "undecodable": 0,
        "clients_cut_off": 0,
        "records_dropped": 0,
        "step_seconds": 0.5,
    }
    return EngineStats(**(fields | changes))


@dataclass
class Wire:
    """Numbers messages as the processes do and makes both halves of each hop."""

    sequences: Counter = field(default_factory=Counter)
    sent: Counter = field(default_factory=Counter)
    """What the sockets counted, by message name."""

    def message(
        self,
        name: str,
        sender: str,
        receiver: str,
        parent: TraceContext,
        at_ns: int,
        *,
        links: tuple[HopLink, ...] = (),
        call: str | None = None,
    ) -> tuple[HopSent, HopReceived]:
        self.sequences[sender] += 1
        self.sent[name] += 1
        context = child_context(parent)
        sent = HopSent(
            sender=sender,
            sender_epoch=1,
            sequence=self.sequences[sender],
            message=name,
            destination=receiver,
            trace_id=context.trace_id,
            span_id=context.span_id,
            parent_id=parent.span_id,
            flags=0,
            start_ns=at_ns,
            sent_ns=at_ns + 1000,
            size_bytes=100,
            links=links,
            call=call,
        )
        received = HopReceived(
            sender=sender,
            sender_epoch=1,
            sequence=sent.sequence,
            message=name,
            receiver=receiver,
            received_ns=at_ns + 5000,
            dequeued_ns=at_ns + 6000,
            done_ns=at_ns + 9000,
            sent_ns=sent.sent_ns,
        )
        return sent, received


def step_record(context: TraceContext, step: int, at_ns: int) -> StepRecord:
    return StepRecord(
        engine_id="e0",
        epoch=1,
        step=step,
        trace_id=context.trace_id,
        span_id=context.span_id,
        start_ns=at_ns - 1000,
        scheduled_ns=at_ns - 900,
        executed_ns=at_ns - 100,
        end_ns=at_ns + 3000,
        prefill_tokens=0,
        decode_tokens=1,
        requests=1,
        used_blocks=1,
        preempted=0,
    )


def play_request(
    hub: Hub, wire: Wire, request: RequestRecord, *, steps: int = 3, abort: bool = False
) -> None:
    """Report a request as gateway and engine would: halves apart, in batches."""
    chat = TraceContext(request.trace_id, request.chat_span_id or "", 0)
    gateway: list = []
    engine: list = []
    records: list = []
    done: list[ChoiceRecord] = []
    for one in request.choices:
        start_ns = request.received_ns + 3 * MS
        link = HopLink(request.request_id, chat)
        sent, got = wire.message("AddRequest", "gateway-0", "e0", chat, start_ns, links=(link,))
        gateway.append(sent)
        engine.append(got)
        engine_id = f"{request.request_id}-{one.index}"
        done.append(
            msgspec.structs.replace(one, send_span_id=sent.span_id, engine_request_id=engine_id)
        )
        back = HopLink(engine_id, TraceContext(sent.trace_id, sent.span_id, 0))
        for step in range(steps):
            context = new_context()
            at_ns = request.received_ns + (9 + step) * MS
            sent, got = wire.message(
                "EngineOutputs", "e0", "gateway-0", context, at_ns, links=(back,)
            )
            records.append(step_record(context, step + 1, at_ns))
            engine.append(sent)
            gateway.append(got)
    if abort:
        at_ns = request.received_ns + 15 * MS
        sent, got = wire.message("AbortRequests", "gateway-0", "e0", chat, at_ns)
        gateway.append(sent)
        engine.append(got)
        context = TraceContext(sent.trace_id, sent.span_id, 0)
        sent, got = wire.message("EngineOutputs", "e0", "gateway-0", context, at_ns + MS)
        engine.append(sent)
        gateway.append(got)
    finished = msgspec.structs.replace(request, choices=tuple(done))
    hub.gateway_records(gateway_records(accepted=(accepted(request),)))
    hub.engine_message("e0", 1, engine_records(hops=tuple(engine[: len(engine) // 2])))
    hub.gateway_records(gateway_records(hops=tuple(gateway), finished=(finished,)))
    rest = tuple(engine[len(engine) // 2 :])
    hub.engine_message("e0", 1, engine_records(hops=rest, steps=tuple(records)))


def play_call(hub: Hub, wire: Wire, name: str, context: TraceContext, at_ns: int) -> None:
    """Report a utility call and its reply: the supervisor at once, the engine in a batch."""
    call, got_call = wire.message("UtilityCall", "supervisor", "e0", context, at_ns, call=name)
    hub.hop(call)
    under = TraceContext(call.trace_id, call.span_id, 0)
    reply, got_reply = wire.message(
        "UtilityReply", "e0", "supervisor", under, at_ns + 50_000, call=name
    )
    hub.hop(got_reply)
    hub.engine_message("e0", 1, engine_records(hops=(reply, got_call)))
