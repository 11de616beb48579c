"""The traces that the hub puts together: complete trees, and every message in them."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from appliance.supervisor.admin.ports import NotFoundError, TraceQuery
from appliance.supervisor.admin.schemas import Operation, Trace
from appliance.telemetry import names
from appliance.telemetry.hub import Hub
from appliance.telemetry.records import Outcome
from engine.clock import now_ns
from engine.wire.header import TraceContext, new_context, new_span_id
from engine.wire.messages import EngineReady, StartPhase
from tests.appliance.telemetry.every_span import every_span
from tests.appliance.telemetry.workload import (
    MS,
    Wire,
    accepted,
    choice,
    engine_records,
    gateway_records,
    play_call,
    play_request,
    record,
    rejected,
    timeline,
)

pytestmark = pytest.mark.anyio


def assert_tree(trace: Trace) -> None:
    """One root, and every other span's parent stands before it."""
    assert [span for span in trace.spans if span.parent_id is None] == trace.spans[:1]
    seen = {trace.spans[0].span_id}
    for span in trace.spans[1:]:
        assert span.parent_id in seen
        assert span.span_id not in seen
        seen.add(span.span_id)


def shape(trace: Trace) -> list[str]:
    """The tree as indented names."""
    depth: dict[str | None, int] = {None: -1}
    lines = []
    for span in trace.spans:
        depth[span.span_id] = depth[span.parent_id] + 1
        lines.append("  " * depth[span.span_id] + span.name)
    return lines


async def test_a_requests_trace_is_one_tree_from_the_server_span_to_each_message(hub: Hub):
    request = record(now_ns())
    play_request(hub, Wire(), request, steps=2)

    trace = await hub.trace(request.request_id)

    assert_tree(trace)
    assert trace.complete
    assert shape(trace) == [
        "POST /v1/chat/completions",
        "  auth",
        "  admission",
        "  tokenize",
        "  chat tiny",
        "    dispatch",
        "      send AddRequest",
        "        process AddRequest",
        "    queue",
        "    prefill",
        "    decode",
        "      send EngineOutputs",
        "        process EngineOutputs",
        "      send EngineOutputs",
        "        process EngineOutputs",
        "  stream",
    ]
    kinds = {span.name: span.kind for span in trace.spans}
    assert kinds["POST /v1/chat/completions"] == "server"
    assert kinds["send AddRequest"] == "producer"
    assert kinds["process AddRequest"] == "consumer"
    assert [span.linked for span in trace.spans if "EngineOutputs" in span.name] == [True] * 4
    processes = {span.name: span.process for span in trace.spans}
    assert processes["prefill"] == processes["send EngineOutputs"] == "e0"
    assert processes["stream"] == processes["process EngineOutputs"] == "gateway-0"


async def test_spans_carry_the_attributes_of_the_conventions(hub: Hub):
    request = record(now_ns())
    play_request(hub, Wire(), request)
    trace = await hub.trace(request.request_id)
    attributes = {span.name: span.attributes for span in trace.spans}

    server = attributes["POST /v1/chat/completions"]
    assert server["http.request.method"] == "POST"
    assert server["http.route"] == server["url.path"] == "/v1/chat/completions"
    assert server["http.response.status_code"] == 200
    chat = attributes["chat tiny"]
    assert chat["gen_ai.operation.name"] == "chat"
    assert chat["gen_ai.usage.input_tokens"] == 7
    assert chat["gen_ai.usage.output_tokens"] == 5
    assert chat["gen_ai.response.finish_reasons"] == ["stop"]
    assert chat["gen_ai.response.id"] == request.request_id.replace("req-", "chatcmpl-")
    send = attributes["send AddRequest"]
    assert send["messaging.system"] == "zeromq"
    assert send["messaging.destination.name"] == "e0"
    assert send["messaging.message.conversation_id"] == request.request_id
    process = attributes["process AddRequest"]
    assert process[names.HOP_TRANSIT] == 4000
    assert process[names.HOP_QUEUED] == 1000


async def test_any_form_of_the_id_finds_the_trace(hub: Hub):
    request = record(now_ns())
    play_request(hub, Wire(), request)
    digits = request.request_id.removeprefix("req-")

    for form in (f"chatcmpl-{digits}", f"cmpl-{digits}", f"req-{digits}-0", digits):
        assert (await hub.trace(form)).request.id == request.request_id
        assert hub.request(form).id == request.request_id
    with pytest.raises(NotFoundError):
        await hub.trace("req-" + "f" * 24)


async def test_all_messages_of_a_mixed_workload_have_a_send_and_a_process_span(
    hub: Hub, tmp_path: Path
):
    wire, start_ns = Wire(), now_ns()
    for number in range(20):
        at_ns = start_ns + number * MS
        play_request(hub, wire, record(at_ns))
        several = tuple(choice(k, timeline(at_ns + 4 * MS)) for k in range(2))
        play_request(hub, wire, record(at_ns, choices=several))
        play_request(hub, wire, record(at_ns, outcome=Outcome.ABORTED), abort=True)
        hub.gateway_records(gateway_records(finished=(rejected(received_ns=at_ns),)))
        play_call(hub, wire, "Ping", new_context(), at_ns)
    await hub.close()

    spans = list(every_span(tmp_path / "traces.sqlite"))
    counts = Counter(span.name for span in spans)
    known = {(span.trace_id, span.span_id) for span in spans}
    orphans = [s for s in spans if s.parent_id and (s.trace_id, s.parent_id) not in known]
    assert len(known) == len(spans)
    assert wire.sent.total() == 20 * (4 + 8 + 6 + 2)
    for message, count in wire.sent.items():
        assert counts[f"send {message}"] == count
        assert counts[f"process {message}"] == count
    assert orphans == []


async def test_each_choice_shows_the_messages_that_served_it(hub: Hub):
    at_ns = now_ns()
    several = tuple(choice(k, timeline(at_ns + 4 * MS)) for k in range(2))
    request = record(at_ns, choices=several)
    play_request(hub, Wire(), request, steps=2)

    trace = await hub.trace(request.request_id)

    assert_tree(trace)
    assert trace.complete
    choices = [span.name for span in trace.spans if span.name.startswith("choice")]
    assert choices == ["choice 0", "choice 1"]
    for index in range(2):
        whole = next(span for span in trace.spans if span.name == f"choice {index}")
        own = [span for span in trace.spans if span.parent_id == whole.span_id]
        assert [span.name for span in own] == ["dispatch", "queue", "prefill", "decode"]
        below = [span.name for span in trace.spans if span.parent_id == own[3].span_id]
        assert below == ["send EngineOutputs", "send EngineOutputs"]
        below = [span.name for span in trace.spans if span.parent_id == own[0].span_id]
        assert below == ["send AddRequest"]


async def test_an_abort_appears_in_the_requests_trace(hub: Hub):
    request = record(now_ns(), outcome=Outcome.ABORTED)
    play_request(hub, Wire(), request, abort=True)

    trace = await hub.trace(request.request_id)

    assert_tree(trace)
    lines = [line.strip() for line in shape(trace)]
    abort = lines.index("send AbortRequests")
    assert lines[abort : abort + 4] == [
        "send AbortRequests",
        "process AbortRequests",
        "send EngineOutputs",
        "process EngineOutputs",
    ]
    assert trace.headline.startswith("aborted after 20 ms in decode")


async def test_requests_of_one_callers_trace_are_told_apart(hub: Hub):
    wire, caller = Wire(), new_context(1)
    requests = [
        record(
            now_ns(), trace_id=caller.trace_id, parent_span_id=caller.span_id, span_id=new_span_id()
        )
        for _ in range(2)
    ]
    for request in requests:
        play_request(hub, wire, request, steps=1)

    for request in requests:
        trace = await hub.trace(request.request_id)
        assert_tree(trace)
        assert len(trace.spans) == 14
        assert trace.spans[0].span_id == request.span_id
        assert trace.spans[0].attributes["quarterdeck.upstream.parent_id"] == caller.span_id


async def test_the_send_to_a_dead_engine_is_a_failed_span_and_the_trace_incomplete(hub: Hub):
    at_ns = now_ns() - 5_000 * MS
    request = record(
        at_ns, outcome=Outcome.FAILED, error_code="engine_restarted", last_token_ns=None
    )
    chat = TraceContext(request.trace_id, request.chat_span_id or "", 0)
    sent, _ = Wire().message("AddRequest", "gateway-0", "e0", chat, request.received_ns + 3 * MS)
    lost = choice(0, None, send_span_id=sent.span_id, finish_reason=None)
    request = msgspec.structs.replace(request, choices=(lost,))
    hub.gateway_records(gateway_records(accepted=(accepted(request),), hops=(sent,)))
    hub.engine_died("e0", 1, "killed by signal 9")
    hub.gateway_records(gateway_records(finished=(request,)))

    trace = await hub.trace(request.request_id)

    assert_tree(trace)
    assert not trace.complete
    send = next(span for span in trace.spans if span.name == "send AddRequest")
    assert (send.status, send.attributes["error.type"]) == ("error", "receiver_died")
    assert trace.spans[0].status == "error"
    assert "engine_restarted" in trace.headline


async def test_a_second_engine_request_after_a_requeue_keeps_the_first_in_the_tree(hub: Hub):
    request = record(now_ns(), requeues=1)
    chat = TraceContext(request.trace_id, request.chat_span_id or "", 0)
    wire = Wire()
    first, _ = wire.message("AddRequest", "gateway-0", "e0", chat, request.received_ns + 3 * MS)
    hub.hop(first)
    hub.engine_died("e0", 1, "killed by signal 9")
    play_request(hub, wire, request)

    trace = await hub.trace(request.request_id)

    assert_tree(trace)
    assert [span.name for span in trace.spans].count("send AddRequest") == 2


async def test_halves_that_come_after_the_record_still_find_their_place(hub: Hub):
    request = record(now_ns())
    chat = TraceContext(request.trace_id, request.chat_span_id or "", 0)
    sent, got = Wire().message("AddRequest", "gateway-0", "e0", chat, request.received_ns + 3 * MS)
    one = msgspec.structs.replace(request.choices[0], send_span_id=sent.span_id)
    request = msgspec.structs.replace(request, choices=(one,))
    hub.gateway_records(gateway_records(hops=(sent,), finished=(request,)))
    hub.engine_message("e0", 1, engine_records(hops=(got,)))

    trace = await hub.trace(request.request_id)

    assert_tree(trace)
    assert trace.complete
    lines = shape(trace)
    assert lines[lines.index("    dispatch") + 1] == "      send AddRequest"


async def test_a_running_request_shows_what_is_known_of_it(hub: Hub):
    request = record(now_ns())
    chat = TraceContext(request.trace_id, request.chat_span_id or "", 0)
    sent, got = Wire().message("AddRequest", "gateway-0", "e0", chat, request.received_ns + 3 * MS)
    hub.gateway_records(gateway_records(accepted=(accepted(request),), hops=(sent, got)))

    trace = await hub.trace(request.request_id)

    assert_tree(trace)
    assert not trace.complete
    assert shape(trace)[1:] == ["  send AddRequest", "    process AddRequest"]
    assert trace.headline.startswith("running for")


async def test_a_gateways_death_closes_its_requests_as_failed(hub: Hub):
    request = record(now_ns())
    hub.gateway_records(gateway_records(accepted=(accepted(request),)))
    hub.gateway_died("gateway-0", 1)

    assert hub.requests("live", 10) == []
    row = hub.request(request.request_id)
    assert (row.state, row.error_code) == ("failed", "gateway_died")
    assert_tree(await hub.trace(request.request_id))


def operation(context: TraceContext, hub: Hub, state: str) -> Operation:
    return Operation(
        id="op-1",
        kind="sleep",
        target="e0",
        state=state,
        actor="local",
        trace_id=context.trace_id,
        created_at=hub.parts.clock.now(),
        ended_at=hub.parts.clock.now() if state == "done" else None,
    )


async def test_an_operation_and_its_utility_call_are_one_tree(hub: Hub, tmp_path: Path):
    context = new_context()
    hub.publish_operation(operation(context, hub, "running"))
    wire = Wire()
    call, got_call = wire.message(
        "UtilityCall", "supervisor", "e0", context, now_ns(), call="Sleep"
    )
    hub.hop(call)
    under = TraceContext(call.trace_id, call.span_id, 0)
    reply, got_reply = wire.message(
        "UtilityReply", "e0", "supervisor", under, now_ns(), call="Sleep"
    )
    hub.hop(got_reply)
    hub.publish_operation(operation(context, hub, "done"))
    hub.engine_message("e0", 1, engine_records(hops=(reply, got_call)))  # after the end
    await hub.close()

    spans = [s for s in every_span(tmp_path / "traces.sqlite") if s.trace_id == context.trace_id]
    named = {span.span_id: span.name for span in spans}
    rows = [(s.name, s.kind, named.get(s.parent_id) if s.parent_id else None) for s in spans]
    assert sorted(rows, key=lambda row: row[:2]) == [
        ("Sleep", "client", "operation sleep"),
        ("Sleep", "server", "send UtilityCall"),
        ("operation sleep", "internal", None),
        ("process UtilityCall", "consumer", "send UtilityCall"),
        ("process UtilityReply", "consumer", "send UtilityReply"),
        ("send UtilityCall", "producer", "Sleep"),
        ("send UtilityReply", "producer", "Sleep"),
    ]


async def test_a_call_ends_with_an_error_when_the_engine_dies(hub: Hub, tmp_path: Path):
    call, got_call = Wire().message(
        "UtilityCall", "supervisor", "e0", new_context(), now_ns(), call="Ping"
    )
    hub.hop(call)
    hub.engine_message("e0", 1, engine_records(hops=(got_call,)))
    hub.engine_died("e0", 1, "killed")
    await hub.close()

    spans = every_span(tmp_path / "traces.sqlite")
    assert sorted((span.name, span.error) for span in spans) == [
        ("Ping", "engine_died"),
        ("process UtilityCall", None),
        ("send UtilityCall", None),
    ]


async def test_an_engines_start_is_a_trace_of_its_phases(hub: Hub, tmp_path: Path):
    ready = EngineReady(
        model="tiny",
        architecture="llama",
        max_model_len=64,
        num_blocks=4,
        block_size=16,
        vocab_size=10,
        dtype="float32",
        device="cpu",
        kernel_backend="reference",
        weights_bytes=1,
        kv_cache_bytes=1,
        resident_bytes=1,
        phases=(
            StartPhase(name="import", start_ns=0, end_ns=5),
            StartPhase(name="weights", start_ns=5, end_ns=9),
        ),
    )
    hub.engine_message("e0", 1, ready)
    await hub.close()

    found = [span.name for span in every_span(tmp_path / "traces.sqlite")]
    assert found == ["engine.start", "start import", "start weights"]


async def test_traces_are_listed_newest_first_and_filtered(hub: Hub):
    start_ns = now_ns()
    first, second = record(start_ns), rejected(received_ns=start_ns + MS)
    play_request(hub, Wire(), first)
    hub.gateway_records(gateway_records(finished=(second,)))

    async def listed(**filters: object) -> list[str]:
        return [row.request_id for row in await hub.traces(TraceQuery(**filters))]

    assert await listed() == [second.request_id, first.request_id]
    assert await listed(outcome="rejected") == [second.request_id]
    assert await listed(model="tiny") == [first.request_id]
    assert await listed(min_ms=1000) == []
    assert await listed(limit=1) == [second.request_id]
