"""Supervision of real processes: death, restart, hang, fencing, crash loop, ordered end."""

import asyncio
import os
import re
import signal
from pathlib import Path

import msgspec
import pytest

from appliance.control_link.messages import FleetState
from appliance.supervisor.health import HealthLimits
from engine.clock import now_ns
from tests.appliance.supervisor.appliance_under_test import WAIT_S, appliance

pytestmark = [pytest.mark.anyio, pytest.mark.process]


async def test_a_killed_engine_is_noticed_at_once_and_comes_back_as_a_new_epoch(run_dir: Path):
    async with appliance(run_dir, "well") as it:
        before = it.engine()
        assert before.pid is not None
        killed_ns = now_ns()
        os.kill(before.pid, signal.SIGKILL)

        dead = await it.until_state("backoff")
        noticed_s = (now_ns() - killed_ns) / 1e9
        again = await it.until_state("ready", epoch=2)

    assert noticed_s < 0.5
    assert (dead.reason, dead.pid, dead.allowed_actions) == ("SIGKILL", None, ["restart"])
    assert dead.next_restart_at is not None
    assert again.pid != before.pid
    assert (again.restarts, again.last_exit, again.reason) == (1, "SIGKILL", None)


async def test_what_an_engine_says_of_kernels_and_formats_is_in_its_row_while_it_lives(
    run_dir: Path,
):
    async with appliance(run_dir, "well") as it:
        row = it.engine()
        assert row.pid is not None
        os.kill(row.pid, signal.SIGKILL)
        dead = await it.until_state("backoff")

    assert (row.kernel_backend, row.kernel_path) == ("fake", "fake-isa")
    assert (row.quantization, row.kv_cache_dtype, row.weight_cache) == ("w4", "int8", "hit")
    assert (row.kernel_reason, row.num_threads) == ("there is no other", 2)
    assert row.quantization_reason == "as the file holds them"
    assert (dead.kernel_path, dead.quantization, dead.num_threads) == (None, None, None)


async def test_the_journal_tells_the_life_of_an_engine_in_sentences(run_dir: Path):
    async with appliance(run_dir, "well") as it:
        pid = it.engine().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await it.until_state("ready", epoch=2)
        events = [e for e in reversed(it.hub.parts.journal.latest(100)) if e.subject == "e0"]

    texts = [re.sub(r"\d+\.\d s", "N s", event.text) for event in events]
    ready = (
        "ready: fake, float32, 64 KV blocks, N s; weights w4 (as the file holds them), KV int8,"
        " kernels fake-isa on 2 threads (there is no other)"
    )
    assert texts == [
        "starts",
        ready,
        "died (epoch 1): SIGKILL",
        "SIGKILL; next start in N s",
        "starts again after: SIGKILL",
        ready,
    ]


async def test_a_gateway_that_has_not_greeted_does_not_delay_the_end(run_dir: Path):
    async with appliance(run_dir, "well", gateways=1, ready=False) as it:
        async with it_waits():
            while it.supervisor.gateways()[0].pid is None:
                await a_moment()
        assert it.supervisor.gateways()[0].state == "starting"
        began_ns = now_ns()
        it.supervisor.begin_drain(30.0)

        assert await it.supervisor.drained(WAIT_S)
        assert (now_ns() - began_ns) / 1e9 < WAIT_S / 4


async def test_messages_of_a_dead_epoch_are_fenced(run_dir: Path):
    async with appliance(run_dir, "well") as it:
        pid = it.engine().pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        it.fleet.client.expect("e0", 99)  # as if a successor had been started meanwhile
        before = it.fleet.client.counts.fenced
        os.kill(pid, signal.SIGCONT)
        async with it_waits():
            while it.fleet.client.counts.fenced == before:
                await a_moment()
        it.fleet.client.expect("e0", 1)


async def test_an_engine_that_keeps_dying_is_left_down_after_five_deaths(run_dir: Path):
    async with appliance(run_dir, "crash", ready=False) as it:
        it.fleet.engines["e0"].policy.first_delay_s = 0.02
        row = await it.until_state("crash_loop")

        assert (row.epoch, row.restarts, row.last_exit) == (5, 4, "SIGKILL")
        assert row.allowed_actions == ["restart"]


async def test_an_engine_that_cannot_start_says_why(run_dir: Path):
    async with appliance(run_dir, "crash-early", "config-error", ready=False) as it:
        it.fleet.engines["e0"].policy.first_delay_s = 0.02
        row = await it.until_state("crash_loop")
        failed = await it.until(lambda r: r.state == "failed", "e1")

        assert row.reason == "exit code 1: no such weights"
        assert (failed.epoch, failed.last_exit) == (1, "exit code 78")
        assert ("e0", "no such weights") in it.lines


async def test_a_stopped_engine_counts_as_hanging_and_is_replaced(run_dir: Path):
    async with appliance(run_dir, "well", health=HealthLimits(hang_s=0.6)) as it:
        pid = it.engine().pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        hung = await it.until(lambda r: r.phase == "hung")
        dead = await it.until_state("backoff")
        again = await it.until_state("ready", epoch=2)

    assert hung.reason is not None
    assert hung.reason.startswith("no tick of its loop for")
    assert dead.last_exit is not None
    assert dead.last_exit.startswith("hung: no tick of its loop for")
    assert dead.last_exit.endswith("; ended by SIGKILL")
    assert dead.reason is not None
    assert dead.reason.startswith("hung: no tick")
    assert again.pid != pid


async def test_an_engine_that_writes_a_lot_does_not_block(run_dir: Path):
    async with appliance(run_dir, "loud") as it:
        assert sum(len(line) for name, line in it.lines if name == "e0") > 10_000


async def test_two_engines_die_apart(run_dir: Path):
    async with appliance(run_dir, "well", "well") as it:
        pid = it.engine("e1").pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await it.until(lambda r: r.state == "ready" and r.epoch == 2, "e1")

        assert it.engine("e0").epoch == 1
        assert it.supervisor.startup()[0]


async def test_a_dead_gateway_comes_back_behind_the_same_socket(run_dir: Path):
    async with appliance(run_dir, "well", gateways=1) as it:
        await it.until_gateway_ready(1)
        pid = it.supervisor.gateways()[0].pid
        assert pid is not None
        assert await it.ask_gateway("epoch") == "1"

        os.kill(pid, signal.SIGKILL)

        assert await it.ask_gateway("epoch") == "2"  # the connection waited in the backlog
        await it.until_gateway_ready(2)
        assert it.supervisor.gateways()[0].restarts == 1
        assert it.fleet.client.counts.sent["AbortRequests"] == 1


async def test_gateways_work_from_the_state_that_is_true_now(run_dir: Path):
    async with appliance(run_dir, "well", gateways=1) as it:
        await it.until_gateway_ready(1)
        pid = it.engine().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await it.until_state("ready", epoch=2)
        async with it_waits():
            while it.fleet.link.unacked_s("gateway-0") or it.fleet.dirty.is_set():
                await a_moment()
        told = msgspec.json.decode(await it.ask_gateway("state"), type=FleetState)

        assert told.sequence == it.fleet.link.acked("gateway-0")
        assert [(e.engine_id, e.epoch, e.state) for e in told.engines] == [("e0", 2, "ready")]
        assert told.engines[0].ready is not None
        assert {key.scope for key in told.keys} == {"inference", "admin"}


async def test_the_end_leaves_no_process(run_dir: Path):
    async with appliance(run_dir, "well", gateways=1) as it:
        await it.until_gateway_ready(1)
        pids = [it.engine().pid, it.supervisor.gateways()[0].pid]

    for pid in pids:
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert it.engine().state == "stopped"
    assert it.engine().last_exit == "exit code 0"


def it_waits() -> asyncio.Timeout:
    return asyncio.timeout(20)


async def a_moment() -> None:
    await asyncio.sleep(0.01)
