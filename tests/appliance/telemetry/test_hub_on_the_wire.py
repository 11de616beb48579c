"""The hub fed by real sockets: as many spans as the sockets counted messages."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from appliance.telemetry.hub import Hub
from appliance.telemetry.records import Outcome
from engine.client.async_mp import AsyncMPClient
from engine.clock import now_ns
from engine.config import ClientEndpoint, EngineConfig
from engine.wire.addresses import input_address, output_address
from engine.wire.calls import DumpState, Ping
from engine.wire.header import TraceContext, new_context
from engine.wire.hops import HopRecord
from engine.wire.messages import TRACED, AbortReason, AddRequest, EngineReady, SamplingParams
from tests.appliance.telemetry.every_span import every_span
from tests.appliance.telemetry.workload import choice, gateway_records, record
from tests.fakes import FakeEngine

pytestmark = pytest.mark.anyio

NAMES = [kind.__name__ for kind in TRACED]


class Fleet:
    """A supervisor, a gateway and an engine on real sockets, reporting to a hub."""

    def __init__(self, hub: Hub, run_dir: Path) -> None:
        clients = ("supervisor", "gateway-0")
        self.hub = hub
        self.ready = asyncio.Event()
        self.gateway_hops: list[HopRecord] = []
        self.supervisor = AsyncMPClient(
            clients[0], 1, run_dir, on_message=self._hear, on_hop=hub.hop
        )
        self.gateway = AsyncMPClient(
            clients[1], 1, run_dir, on_message=lambda *_: None, on_hop=self.gateway_hops.append
        )
        endpoints = tuple(
            ClientEndpoint(
                name=name, input=input_address(run_dir, name), output=output_address(run_dir, name)
            )
            for name in clients
        )
        config = EngineConfig(
            engine_id="e0", epoch=1, model="-", model_name="tiny", clients=endpoints
        )
        self.engine = FakeEngine(config)
        for client in (self.supervisor, self.gateway):
            client.expect("e0", 1)

    def _hear(self, engine_id: str, epoch: int, message: object) -> None:
        self.hub.engine_message(engine_id, epoch, message)
        if isinstance(message, EngineReady):
            self.ready.set()

    def sent(self) -> Counter[str]:
        counts = (self.supervisor.counts, self.gateway.counts, self.engine.counts)
        total = sum((count.sent for count in counts), Counter())
        return Counter({name: total[name] for name in NAMES})

    def close(self) -> None:
        self.supervisor.close()
        self.gateway.close()


async def ask(fleet: Fleet, *, abort_after: int | None = None) -> str:
    """One request as a gateway makes it, with its record at the end; returns its id."""
    request = record(now_ns())
    chat = TraceContext(request.trace_id, request.chat_span_id or "", 0)
    engine_request_id = f"{request.request_id}-0"
    message = AddRequest(
        request_id=engine_request_id,
        prompt_token_ids=(1, 2, 3),
        sampling=SamplingParams(max_tokens=5, ignore_eos=True),
        arrival_ns=request.received_ns,
    )
    collector = fleet.gateway.add_request("e0", message, chat, external_id=request.request_id)
    seen = 0
    while True:
        output = await collector.get()
        seen += len(output.new_token_ids)
        if output.finish_reason is not None:
            break
        if abort_after is not None and seen >= abort_after:
            reason = AbortReason.CLIENT_DISCONNECTED
            fleet.gateway.abort("e0", (engine_request_id,), reason, chat)
            abort_after = None
    end_ns = now_ns()
    one = choice(
        0,
        output.timeline,
        engine_request_id=engine_request_id,
        send_span_id=collector.send_span_id,
    )
    outcome = Outcome.ABORTED if output.finish_reason == "abort" else Outcome.FINISHED
    ended = record(
        request.received_ns,
        request_id=request.request_id,
        trace_id=request.trace_id,
        span_id=request.span_id,
        chat_span_id=request.chat_span_id,
        outcome=outcome,
        authenticated_ns=request.received_ns,
        admitted_ns=request.received_ns,
        tokenized_ns=request.received_ns,
        last_token_ns=end_ns,
        first_frame_ns=end_ns,
        ended_ns=end_ns,
        choices=(one,),
    )
    hops, fleet.gateway_hops[:] = tuple(fleet.gateway_hops), []
    fleet.hub.gateway_records(gateway_records(hops=hops, finished=(ended,)))
    return request.request_id


async def test_requests_aborts_and_calls_have_all_their_spans(
    hub: Hub, run_dir: Path, tmp_path: Path
):
    fleet = Fleet(hub, run_dir)
    async with asyncio.TaskGroup() as tasks:
        lasting = [
            tasks.create_task(one)
            for one in (fleet.supervisor.run(), fleet.gateway.run(), fleet.engine.run())
        ]
        await fleet.ready.wait()
        async with asyncio.TaskGroup() as requests:
            asked = [
                requests.create_task(ask(fleet, abort_after=2 if number % 5 == 0 else None))
                for number in range(20)
            ]
            for call in (Ping(), DumpState()):
                await fleet.supervisor.call("e0", call, timeout_s=5, context=new_context())
        hub.gateway_records(gateway_records(hops=tuple(fleet.gateway_hops)))
        traces = [await hub.trace(task.result()) for task in asked]
        for task in lasting:
            task.cancel()
    fleet.close()
    await hub.close()

    assert all(trace.complete for trace in traces)
    for trace in traces:
        spans = {span.span_id: span for span in trace.spans}
        assert [span.parent_id in spans for span in trace.spans[1:]].count(False) == 0
    spans = list(every_span(tmp_path / "traces.sqlite"))
    counts = Counter(span.name for span in spans)
    assert [(span.name, span.error) for span in spans if span.error is not None] == []
    sent = fleet.sent()
    assert sent["AbortRequests"] == 4
    assert sent["UtilityCall"] == sent["UtilityReply"] == 2
    for name in NAMES:
        assert counts[f"send {name}"] == counts[f"process {name}"] == sent[name]
