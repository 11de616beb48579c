"""Engines that die, sleep and wake under requests, clients that leave, and a gateway that stops."""

import asyncio
import json
import socket

import msgspec
import openai
import psutil
import pytest

from appliance.control_link.messages import GatewayRecords, GatewayStopped, WakeEngine
from appliance.gateway.data_plane import Timing
from appliance.telemetry.records import Outcome
from engine.wire.calls import Sleep
from engine.wire.messages import AbortReason
from tests.appliance.gateway.fake_supervisor import (
    GATEWAY,
    KEY,
    FakeSupervisor,
    a_ready,
    a_route,
)
from tests.appliance.gateway.stand import CHAT, running

pytestmark = pytest.mark.anyio

URL = "/v1/chat/completions"
ENDLESS = {**CHAT, "max_tokens": 400, "ignore_eos": True}


async def until(condition, timeout_s: float = 5.0) -> None:
    """Wait for what has no event to wait for: the state of the fake engine."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.002)


async def test_a_client_that_leaves_a_stream_is_aborted(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path, step_s=0.005) as stand:
        http = await stand.http()

        async with http.stream("POST", URL, json={**ENDLESS, "stream": True}) as response:
            await anext(response.aiter_lines())
        await until(lambda: stand.engine.aborts)
        record = await stand.supervisor.record(response.headers["x-request-id"])

        assert stand.engine.aborts[0].reason is AbortReason.CLIENT_DISCONNECTED
        assert record.outcome is Outcome.ABORTED
        assert record.error_code == "client_disconnected"
        assert record.choices[0].timeline.finished_ns is not None
        assert not stand.engine.live_requests


@pytest.mark.parametrize("is_queued", [True, False])
async def test_a_client_that_leaves_a_plain_request_is_aborted(run_dir, tiny_model_path, is_queued):
    async with running(run_dir, tiny_model_path, step_s=0.005) as stand:
        http = await stand.http()
        if is_queued:
            stand.engine.may_step.clear()
        asking = asyncio.ensure_future(http.post(URL, json=ENDLESS))
        await until(lambda: stand.engine.received)

        asking.cancel()
        await until(lambda: stand.engine.aborts)
        stand.engine.may_step.set()
        counts = await stand.supervisor.totals(1)

        assert stand.engine.aborts[0].reason is AbortReason.CLIENT_DISCONNECTED
        assert counts["aborted"] == 1
        assert counts["running"] == 0


async def test_all_choices_of_a_client_that_leaves_are_aborted_at_once(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path, step_s=0.005) as stand:
        http = await stand.http()
        asking = asyncio.ensure_future(http.post(URL, json={**ENDLESS, "n": 8}))
        await until(lambda: len(stand.engine.received) == 8)

        stand.engine.may_step.clear()  # no last word comes that could be waited for
        asking.cancel()
        await until(lambda: sum(len(a.request_ids) for a in stand.engine.aborts) == 8, 1.0)
        stand.engine.may_step.set()

        assert (await stand.supervisor.totals(1))["aborted"] == 1


async def test_a_death_before_the_first_token_is_not_seen_by_the_client(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()
        stand.engine.may_step.clear()
        asking = asyncio.ensure_future(http.post(URL, json={**CHAT, "max_tokens": 3}))
        await until(lambda: stand.engine.received)

        await stand.kill_engine()
        reborn = await stand.restart_engine()
        answer = await asking
        record = await stand.supervisor.record(answer.json()["id"][-24:])

        assert answer.status_code == 200
        assert reborn.received[0].request_id == f"{record.request_id}-r1"
        assert record.requeues == 1
        assert record.choices[0].engine_epoch == 2


async def test_a_death_in_a_stream_ends_it_with_an_error_frame(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path, step_s=0.005) as stand:
        http = await stand.http()
        async with http.stream("POST", URL, json={**ENDLESS, "stream": True}) as response:
            lines = response.aiter_lines()
            await anext(lines)

            await stand.kill_engine()
            rest = [line.removeprefix("data: ") async for line in lines if line]
        record = await stand.supervisor.record(response.headers["x-request-id"])

        assert json.loads(rest[-1])["error"]["code"] == "engine_restarted"
        assert "[DONE]" not in rest
        assert record.outcome is Outcome.FAILED
        assert record.status == 200


async def test_the_second_death_is_the_requests_fault(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        sdk = await stand.sdk()
        stand.engine.may_step.clear()
        asking = asyncio.ensure_future(sdk.chat.completions.create(**CHAT))
        await until(lambda: stand.engine.received)
        await stand.kill_engine()
        reborn = await stand.restart_engine()
        reborn.may_step.clear()
        await until(lambda: reborn.received)

        await stand.kill_engine()
        with pytest.raises(openai.InternalServerError) as caught:
            await asking

        assert caught.value.status_code == 500
        assert caught.value.code == "request_crashed_engine"
        assert caught.value.response.headers["x-should-retry"] == "false"


async def test_a_request_wakes_a_sleeping_engine_and_waits(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()
        await stand.supervisor.moved(state="asleep", sleep_level=1)
        asking = asyncio.ensure_future(http.post(URL, json={**CHAT, "max_tokens": 2}))

        wake = await stand.supervisor.hear(WakeEngine)
        assert not stand.engine.received
        stand.supervisor.move(state="waking")
        stand.supervisor.move(state="ready", sleep_level=0)
        answer = await asking
        record = await stand.supervisor.record(answer.json()["id"][-24:])

        assert wake.engine_id == "e0"
        assert wake.request_id == record.request_id
        assert answer.status_code == 200
        assert record.held_ns > 0


async def test_a_stream_that_waits_gets_comments_then_its_frames(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()
        await stand.supervisor.moved(state="asleep", sleep_level=1)
        body = {**CHAT, "max_tokens": 2, "stream": True}
        async with http.stream("POST", URL, json=body) as response:
            lines = response.aiter_lines()
            first = await anext(lines)
            stand.supervisor.move(state="ready", sleep_level=0)
            rest = [line async for line in lines if line and not line.startswith(":")]

        assert first.startswith(": waiting")
        assert rest[-1] == "data: [DONE]"


async def test_an_engine_that_refuses_as_asleep_has_not_started(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()
        stand.engine.sleep_level = 1  # the supervisor does not know yet
        asking = asyncio.ensure_future(http.post(URL, json={**CHAT, "max_tokens": 2}))
        await until(lambda: stand.engine.received)

        stand.supervisor.move(state="asleep", sleep_level=1)
        await stand.supervisor.hear(WakeEngine)
        stand.engine.sleep_level = 0
        stand.supervisor.move(state="ready", sleep_level=0)
        answer = await asking

        assert answer.status_code == 200
        assert (await stand.supervisor.record(answer.json()["id"][-24:])).requeues == 0


async def test_on_asleep_reject_answers_at_once(run_dir, tiny_model_path):
    def reject(supervisor: FakeSupervisor) -> None:
        supervisor.on_asleep = "reject"

    async with running(run_dir, tiny_model_path, prepare=reject) as stand:
        http = await stand.http()
        await stand.supervisor.moved(state="asleep", sleep_level=1)

        answer = await http.post(URL, json=CHAT)

        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_asleep"
        assert answer.headers["retry-after"] == "3"
        assert (await stand.supervisor.totals(1))["rejected"] == 1


async def test_sleep_that_aborts_ends_a_stream_with_an_error_frame(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path, step_s=0.005) as stand:
        http = await stand.http()
        async with http.stream("POST", URL, json={**ENDLESS, "stream": True}) as response:
            lines = response.aiter_lines()
            await anext(lines)
            plane = stand.gateway.plane
            context = next(iter(plane.live.values())).journey.context.trace
            await plane.client.call("e0", Sleep(mode="abort"), timeout_s=5, context=context)
            rest = [line.removeprefix("data: ") async for line in lines if line]
        record = await stand.supervisor.record(response.headers["x-request-id"])

        assert json.loads(rest[-1])["error"]["code"] == "engine_asleep"
        assert record.outcome is Outcome.ABORTED


async def test_a_request_waits_for_an_engine_that_starts(run_dir, tiny_model_path):
    def starting(supervisor: FakeSupervisor) -> None:
        supervisor.engines["e0"] = a_route(tiny_model_path, state="starting", ready=None)

    async with running(run_dir, tiny_model_path, prepare=starting, engine=False) as stand:
        http = await stand.http()
        assert (await http.get("/startupz")).status_code == 503
        assert (await http.get("/readyz")).status_code == 503
        asking = asyncio.ensure_future(http.post(URL, json={**CHAT, "max_tokens": 2}))
        await until(lambda: any(r.journey.is_held for r in stand.gateway.plane.live.values()))

        stand.start_engine()
        stand.supervisor.move(state="ready", ready=a_ready())

        assert (await asking).status_code == 200
        assert (await http.get("/startupz")).status_code == 200


async def test_a_held_request_gives_up_in_time(run_dir, tiny_model_path):
    def impatient(supervisor: FakeSupervisor) -> None:
        supervisor.limits = msgspec.structs.replace(supervisor.limits, hold_s=0.3)
        supervisor.engines["e0"] = a_route(tiny_model_path, state="starting")

    async with running(run_dir, tiny_model_path, prepare=impatient, engine=False) as stand:
        http = await stand.http()

        plain = await http.post(URL, json=CHAT)
        stream = await http.post(URL, json={**CHAT, "stream": True})
        counts = await stand.supervisor.totals(2)

        assert plain.status_code == 503
        assert plain.headers["retry-after"] == "3"
        last = stream.text.strip().splitlines()[-1].removeprefix("data: ")
        assert stream.status_code == 200  # its headers were out before it failed
        assert json.loads(last)["error"]["code"] == "server_overloaded"
        assert counts["failed"] == 2


async def test_requests_go_to_the_least_loaded_engine(run_dir, tiny_model_path):
    def two(supervisor: FakeSupervisor) -> None:
        supervisor.engines["e1"] = a_route(tiny_model_path, "e1")

    async with running(run_dir, tiny_model_path, prepare=two) as stand:
        stand.start_engine("e1")
        http = await stand.http()

        answer = await http.post(URL, json={**CHAT, "n": 4, "max_tokens": 2})

        assert answer.status_code == 200
        assert [len(stand.engines[e].received) for e in ("e0", "e1")] == [2, 2]


async def test_without_an_engine_that_can_come_the_answer_is_503(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()
        await stand.supervisor.moved(state="crash_loop", reason="it always dies")

        answer = await http.post(URL, json=CHAT)

        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "server_overloaded"
        assert answer.headers["retry-after"] == "3"


async def test_an_operators_abort_reaches_held_and_running_requests(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path, step_s=0.005) as stand:
        http = await stand.http()
        async with http.stream("POST", URL, json={**ENDLESS, "stream": True}) as response:
            lines = response.aiter_lines()
            await anext(lines)
            request_id = response.headers["x-request-id"]

            result = await stand.supervisor.link.abort("chatcmpl-" + request_id[4:], "op", 5)
            rest = [line.removeprefix("data: ") async for line in lines if line]

        assert result.completion_tokens > 0
        assert json.loads(rest[-1])["error"]["code"] == "request_aborted"
        assert await stand.supervisor.link.abort("req-" + "0" * 24, "op", 5) is None
        assert (await stand.supervisor.record(request_id)).outcome is Outcome.ABORTED
        assert stand.engine.aborts[0].reason is AbortReason.OPERATOR


async def ask_without_reading(port: int, *, stream: bool) -> socket.socket:
    """Ask for an answer that is too large for the buffers of the socket."""
    fields = {"n": 8, "max_tokens": 480, "logprobs": True, "top_logprobs": 20, "stream": stream}
    body = json.dumps({**CHAT, **fields}).encode()
    head = (
        f"POST {URL} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", port))
    await loop.sock_sendall(sock, head.encode() + body)
    return sock


def connections_to(port: int) -> list[object]:
    """The server's ends of connections; tests run the gateway in this process."""
    mine = psutil.Process().net_connections("tcp")
    return [c for c in mine if c.laddr.port == port and c.status != psutil.CONN_LISTEN]


async def test_a_plain_answer_that_nobody_takes_is_dropped(run_dir, tiny_model_path, monkeypatch):
    monkeypatch.setattr("appliance.gateway.http_protocol.STALL_S", 0.2)
    async with running(run_dir, tiny_model_path, step_s=0) as stand:
        with await ask_without_reading(stand.port, stream=False):
            counts = await stand.supervisor.totals(1)
            assert counts["finished"] == 1

            await until(lambda: not connections_to(stand.port))


async def test_a_reader_that_stalls_is_cut_off(run_dir, tiny_model_path):
    stall = Timing(stall_s=0.2, settle_s=2.0)
    async with running(run_dir, tiny_model_path, timing=stall, step_s=0) as stand:
        sock = await ask_without_reading(stand.port, stream=True)

        counts = await stand.supervisor.totals(1)
        sock.close()

        assert counts["aborted"] == 1
        assert {a.reason for a in stand.engine.aborts} == {AbortReason.CLIENT_DISCONNECTED}


async def test_shutdown_lets_requests_finish_and_refuses_new_ones(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()
        stand.engine.may_step.clear()
        asking = asyncio.ensure_future(http.post(URL, json={**CHAT, "max_tokens": 3}))
        await until(lambda: stand.engine.received)

        stand.supervisor.link.shutdown(5.0)
        await until(lambda: stand.gateway.plane.is_draining)
        refused = await http.post(URL, json=CHAT)
        ready = await http.get("/readyz")
        stand.engine.may_step.set()

        assert refused.status_code == ready.status_code == 503
        assert refused.headers["connection"] == "close"
        assert refused.headers["retry-after"]
        assert (await asking).status_code == 200
        await asyncio.wait_for(asyncio.shield(stand.serving), 5)
        await stand.supervisor.hear(GatewayStopped)
        assert [r.outcome for r in stand.supervisor.records] == ["rejected", "finished"]


async def test_at_the_drain_deadline_streams_end_with_an_error_frame(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path, step_s=0.05) as stand:
        http = await stand.http()
        async with http.stream("POST", URL, json={**ENDLESS, "stream": True}) as response:
            lines = response.aiter_lines()
            await anext(lines)
            stand.supervisor.link.shutdown(0.1)
            rest = [line.removeprefix("data: ") async for line in lines if line]

        assert json.loads(rest[-1])["error"]["code"] == "server_shutting_down"
        await asyncio.wait_for(asyncio.shield(stand.serving), 5)
        await stand.supervisor.hear(GatewayStopped)


async def test_the_accounts_close_over_a_mixed_load(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path, step_s=0.001) as stand:
        http = await stand.http()

        async def leave() -> None:
            async with http.stream("POST", URL, json={**ENDLESS, "stream": True}) as response:
                await anext(response.aiter_lines())

        async def finish(number: int) -> None:
            body = {**CHAT, "max_tokens": 5, "stream": number % 2 == 0, "n": 1 + number % 3}
            assert (await http.post(URL, json=body)).status_code == 200

        async def fail() -> None:
            assert (await http.post(URL, json={**CHAT, "n": 0})).status_code == 400

        jobs = [
            *(finish(i) for i in range(20)),
            *(leave() for _ in range(5)),
            *(fail() for _ in range(3)),
        ]
        await asyncio.gather(*jobs)
        counts = await stand.supervisor.totals(28)

        assert counts == {
            "received": 28, "rejected": 3, "accepted": 25, "ended": 25,
            "running": 0, "finished": 20, "aborted": 5, "failed": 0,
        }  # fmt: skip
        assert len(stand.supervisor.records) == 28
        plane = stand.gateway.plane
        assert plane.admission.room.waiting == 0
        assert +plane.fleet.load == {}
        assert plane.live == {}


async def test_a_record_tells_every_stage_in_order(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()
        trace_id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
        headers = {"traceparent": f"00-{trace_id}-{parent}-01", "x-request-id": "mine.1"}

        answer = await http.post(URL, json={**CHAT, "max_tokens": 3}, headers=headers)
        record = await stand.supervisor.record(answer.headers["x-request-id"])
        batches = [b for b in stand.supervisor.said if isinstance(b, GatewayRecords)]

        timeline = record.choices[0].timeline
        stages = [
            record.received_ns, record.authenticated_ns, record.admitted_ns, record.tokenized_ns,
            timeline.received_ns, timeline.scheduled_ns, timeline.first_token_ns,
            timeline.finished_ns, record.last_token_ns, record.first_frame_ns, record.ended_ns,
        ]  # fmt: skip
        assert stages == sorted(stages)
        assert (record.trace_id, record.parent_span_id, record.flags) == (trace_id, parent, 1)
        assert record.client_request_id == "mine.1"
        assert answer.headers["x-request-id"] == record.request_id != "mine.1"
        assert record.completion_tokens == 3
        hops = [hop for batch in batches for hop in batch.hops]
        sent = next(h for h in hops if h.message == "AddRequest")
        assert sent.span_id == record.choices[0].send_span_id
        assert sent.parent_id == record.chat_span_id
        assert any(r.request_id == record.request_id for b in batches for r in b.accepted)
        assert any(r.request_id == record.request_id for b in batches for r in b.first_tokens)


async def test_a_newer_state_replaces_the_older_and_an_older_one_is_ignored(
    run_dir, tiny_model_path
):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()
        await stand.supervisor.moved(served_names=("renamed",))

        names = [row["id"] for row in (await http.get("/v1/models")).json()["data"]]

        assert names == ["renamed"]
        assert stand.gateway.link.sequence == 2
        assert stand.supervisor.link.acked(GATEWAY) == 2
