"""Messages find their place in the tree whenever they come; the export and the file agree."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from appliance.telemetry.hub import Hub
from appliance.telemetry.message_spans import process_span_id
from appliance.telemetry.records import RequestRecord
from appliance.telemetry.span_data import SpanData
from appliance.telemetry.trace_assembly import HOLD_NS
from engine.clock import now_ns
from engine.wire.header import TraceContext
from engine.wire.hops import HopReceived, HopSent
from tests.appliance.telemetry.every_span import every_span
from tests.appliance.telemetry.test_live_control import exporting
from tests.appliance.telemetry.workload import MS, Wire, accepted, gateway_records, record

pytestmark = pytest.mark.anyio


def unplaced(of: RequestRecord) -> tuple[HopSent, HopReceived]:
    """A message below a span of a gateway that died before it could tell of the span."""
    chat = TraceContext(of.trace_id, of.chat_span_id or "", 0)
    return Wire().message("AddRequest", "gateway-0", "e0", chat, of.received_ns)


async def test_messages_of_a_dead_gateway_hang_below_the_root_also_when_they_come_late(
    hub: Hub, tmp_path: Path
):
    exported = exporting(hub)
    request = record(now_ns())
    early, late = unplaced(request), unplaced(request)
    late = tuple(msgspec.structs.replace(half, sequence=2) for half in late)
    hub.gateway_records(gateway_records(accepted=(accepted(request),), hops=early))
    hub.gateway_died("gateway-0", 1)
    hub.parts.assembly.expire(now_ns() + HOLD_NS)
    hub.gateway_records(gateway_records(hops=late))
    hub.parts.assembly.expire(now_ns() + 2 * HOLD_NS)
    await hub.close()

    sends = [span for span in exported if span.name == "send AddRequest"]
    assert len(sends) == 2
    assert {span.parent_id for span in sends} == {exported[0].span_id}
    assert tree(exported) == tree(every_span(tmp_path / "traces.sqlite"))


async def test_a_message_that_comes_before_the_one_that_caused_it_keeps_its_place(
    hub: Hub, tmp_path: Path
):
    exported = exporting(hub)
    request, wire = record(now_ns()), Wire()
    chat = TraceContext(request.trace_id, request.chat_span_id or "", 0)
    cause = wire.message("AbortRequests", "gateway-0", "e0", chat, request.received_ns)
    under = TraceContext(request.trace_id, process_span_id(cause[0]), 0)
    answer = wire.message("EngineOutputs", "e0", "gateway-0", under, request.received_ns + MS)
    hub.gateway_records(gateway_records(accepted=(accepted(request),), hops=answer))
    hub.gateway_records(gateway_records(finished=(request,)))
    hub.gateway_records(gateway_records(hops=cause))
    await hub.close()

    assert tree(exported) == tree(every_span(tmp_path / "traces.sqlite"))
    sent = next(span for span in exported if span.name == "send EngineOutputs")
    assert sent.parent_id == under.span_id


async def test_a_late_message_goes_to_its_own_request_of_a_callers_trace(hub: Hub, tmp_path: Path):
    exported = exporting(hub)
    first = record(now_ns())
    second = record(now_ns(), trace_id=first.trace_id, span_id="ab" * 8, chat_span_id="cd" * 8)
    chat = TraceContext(first.trace_id, first.chat_span_id or "", 0)
    abort = Wire().message("AbortRequests", "gateway-0", "e0", chat, first.received_ns)
    hub.gateway_records(gateway_records(accepted=(accepted(first),), finished=(first,)))
    hub.gateway_records(gateway_records(accepted=(accepted(second),), hops=abort))
    hub.gateway_records(gateway_records(finished=(second,)))
    await hub.close()

    sent = next(span for span in exported if span.name == "send AbortRequests")
    assert sent.parent_id == first.chat_span_id
    assert tree(exported) == tree(every_span(tmp_path / "traces.sqlite"))


def tree(spans: Iterable[SpanData]) -> dict[str, str | None]:
    found = list(spans)
    parents = {span.span_id: span.parent_id for span in found}
    assert len(parents) == len(found), "a span twice"
    return parents
