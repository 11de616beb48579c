"""Sleep, wake and restart as operations, on real fake engines."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from appliance.supervisor import deep_probe, engine_verbs
from appliance.supervisor.admin.ports import ConflictError, NotFoundError
from appliance.supervisor.admin.schemas import SleepBody
from tests.appliance.supervisor.appliance_under_test import Appliance, appliance

pytestmark = [pytest.mark.anyio, pytest.mark.process]


async def sleep(it: Appliance, level: int = 1):
    operation = it.supervisor.sleep("e0", SleepBody(level=level), "local")
    return await it.supervisor.operation(operation.id, 20.0)


async def test_an_engine_sleeps_and_wakes_and_says_what_it_freed(run_dir: Path):
    async with appliance(run_dir, "well") as it:
        asleep = await sleep(it, level=2)
        row = it.engine()
        assert (asleep.state, asleep.actor, asleep.target) == ("done", "local", "e0")
        assert asleep.result is not None
        assert asleep.result["freed_bytes"] > 0
        assert (row.state, row.sleep_level, row.desired_sleep_level) == ("asleep", 2, 2)
        assert row.allowed_actions == ["wake", "restart"]

        awake = it.supervisor.wake("e0", "key-1")
        awake = await it.supervisor.operation(awake.id, 20.0)
        row = it.engine()
        assert (awake.state, awake.result and awake.result["canary_ok"]) == ("done", True)
        assert (row.state, row.sleep_level, row.desired_sleep_level) == ("ready", 0, 0)
        assert [o.kind for o in it.supervisor.operations()] == ["wake", "sleep"]


async def test_a_repeated_verb_is_the_same_operation_or_nothing_to_do(run_dir: Path):
    async with appliance(run_dir, "well") as it:
        first = it.supervisor.sleep("e0", SleepBody(), "a")
        assert it.supervisor.sleep("e0", SleepBody(), "b").id == first.id
        with pytest.raises(ConflictError, match="another sleep is under way"):
            it.supervisor.sleep("e0", SleepBody(mode="abort"), "b")
        await it.supervisor.operation(first.id, 20.0)

        again = it.supervisor.sleep("e0", SleepBody(), "b")
        assert (again.state, again.result, again.id != first.id) == (
            "done",
            {"already": "asleep"},
            True,
        )

        wake = it.supervisor.wake("e0", "a")
        assert it.supervisor.wake("e0", "b").id == wake.id
        await it.supervisor.operation(wake.id, 20.0)
        assert it.supervisor.wake("e0", "b").result == {"already": "ready"}


async def test_a_verb_that_does_not_fit_is_a_conflict_with_what_does(run_dir: Path):
    async with appliance(run_dir, "well") as it:
        await sleep(it, level=1)
        with pytest.raises(ConflictError) as deeper:
            it.supervisor.sleep("e0", SleepBody(level=2), "local")
        assert deeper.value.current_state == "asleep"
        assert deeper.value.allowed_actions == ["wake", "restart"]

        it.supervisor.restart("e0", "local")
        with pytest.raises(ConflictError):
            it.supervisor.wake("e0", "local")
        with pytest.raises(NotFoundError):
            it.supervisor.wake("e7", "local")


async def test_a_restart_ends_with_a_new_epoch_and_the_same_sleep(run_dir: Path):
    async with appliance(run_dir, "well") as it:
        await sleep(it)
        restart = it.supervisor.restart("e0", "local")
        assert it.supervisor.restart("e0", "other").id == restart.id
        restart = await it.supervisor.operation(restart.id, 20.0)
        row = await it.until_state("asleep", epoch=2)

        assert (restart.state, restart.result) == ("done", {"epoch": 2})
        assert (row.epoch, row.sleep_level, row.last_exit) == (2, 1, "exit code 0")
        assert it.supervisor.operations()[0].actor == "desired-state"


async def test_a_crash_keeps_the_desired_sleep(run_dir: Path):
    async with appliance(run_dir, "well") as it:
        await sleep(it)
        pid = it.engine().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

        row = await it.until(lambda r: r.state == "asleep" and r.epoch == 2)
        assert row.sleep_level == 1


async def test_a_restart_leaves_a_crash_loop(run_dir: Path):
    async with appliance(run_dir, "crash-early", ready=False) as it:
        it.fleet.engines["e0"].policy.first_delay_s = 0.01
        await it.until_state("crash_loop")

        operation = it.supervisor.restart("e0", "local")
        operation = await it.supervisor.operation(operation.id, 20.0)

        assert operation.state == "failed"
        assert operation.error == "backoff: exit code 1: no such weights"
        row = await it.until(lambda r: r.state == "crash_loop" and r.epoch == 10)
        assert row.restarts == 9


async def test_a_verb_fails_when_its_engine_dies(run_dir: Path):
    async with appliance(run_dir, "well") as it:
        pid = it.engine().pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        operation = it.supervisor.sleep("e0", SleepBody(), "local")
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        operation = await it.supervisor.operation(operation.id, 20.0)

        assert operation.state == "failed"
        assert operation.error == "engine e0 (epoch 1) is gone: SIGKILL"
        await it.until(lambda r: r.state == "asleep" and r.epoch == 2)  # the wish outlived it


async def test_a_sleep_that_is_refused_leaves_the_engine_serving(run_dir: Path):
    async with appliance(run_dir, "busy") as it:
        operation = await sleep(it)
        row = it.engine()

        assert (operation.state, operation.error) == ("failed", "busy: 1 request runs")
        assert (row.state, row.desired_sleep_level) == ("ready", 0)
        assert row.reason is None, "the operation says it, the engine is well"


async def test_a_wake_that_fails_leaves_the_engine_asleep(run_dir: Path):
    async with appliance(run_dir, "no-wake") as it:
        await sleep(it)
        operation = it.supervisor.wake("e0", "local")
        operation = await it.supervisor.operation(operation.id, 20.0)

        assert (operation.state, operation.error) == ("failed", "internal_error: no memory")
        assert it.engine().state == "asleep"
        assert it.engine().allowed_actions == ["wake", "restart"]


async def test_an_engine_that_wakes_as_another_is_replaced(run_dir: Path):
    async with appliance(run_dir, "forgetful") as it:
        await sleep(it)
        operation = it.supervisor.wake("e0", "local")
        operation = await it.supervisor.operation(operation.id, 20.0)
        row = await it.until_state("ready", epoch=2)

        assert operation.state == "failed"
        assert row.last_exit == "exit code 0"


async def test_an_engine_that_never_answers_is_replaced(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engine_verbs, "TRANSITION_S", 0.1)
    async with appliance(run_dir, "mute") as it:
        operation = it.supervisor.sleep("e0", SleepBody(timeout_s=0.1), "local")
        operation = await it.supervisor.operation(operation.id, 20.0)
        row = await it.until_state("ready", epoch=2)

        assert (operation.state, operation.error) == ("failed", "Sleep: no reply within 0.2 s")
        assert row.last_exit == "hung: Sleep: no reply within 0.2 s; ended by SIGABRT"
        assert row.desired_sleep_level == 0
        assert any("Current thread" in line for _, line in it.lines), "its stacks were dumped"


async def test_an_idle_engine_that_makes_no_token_is_replaced(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(deep_probe, "PROBE_EVERY_S", 0.2)
    monkeypatch.setattr(deep_probe, "PROBE_TIMEOUT_S", 0.2)
    async with appliance(run_dir, "mute") as it:
        row = await it.until(lambda r: r.epoch > 1)

        assert row.last_exit is not None
        assert row.last_exit.startswith("hung: no token for a deep probe: Ping")


async def test_an_idle_engine_that_makes_tokens_is_left_alone(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(deep_probe, "PROBE_EVERY_S", 0.05)
    async with appliance(run_dir, "well") as it:
        counts = it.supervisor._fleet.client.counts
        async with asyncio.timeout(10):
            while counts.received["UtilityReply"] < 3:
                await asyncio.sleep(0.02)

        assert (it.engine().epoch, it.engine().state) == (1, "ready")


async def test_a_request_wakes_the_engine_over_the_control_link(run_dir: Path):
    async with appliance(run_dir, "well", gateways=1) as it:
        await it.until_gateway_ready(1)
        await sleep(it)

        await it.ask_gateway("wake e0")
        row = await it.until_state("ready")

        assert row.desired_sleep_level == 0
        operation = it.supervisor.operations()[0]
        assert (operation.kind, operation.actor) == ("wake", "request:req-1")


async def test_a_request_that_comes_during_the_sleep_wakes_the_engine_after_it(run_dir: Path):
    async with appliance(run_dir, "well") as it:
        it.supervisor.sleep("e0", SleepBody(), "local")
        it.fleet._wake("e0", "req-2")
        await it.until_state("asleep")
        await it.until_state("ready")

        assert [(o.kind, o.actor) for o in it.supervisor.operations()] == [
            ("wake", "request:req-2"),
            ("sleep", "local"),
        ]


async def test_an_abort_is_confirmed_by_the_gateway_that_holds_the_request(run_dir: Path):
    async with appliance(run_dir, "well", gateways=1) as it:
        await it.until_gateway_ready(1)

        answer = await it.supervisor.abort("req-held", "local")

        assert (answer.id, answer.state, answer.completion_tokens) == ("req-held", "aborted", 3)


async def test_no_verb_is_taken_once_the_end_began(run_dir: Path):
    async with appliance(run_dir, "well") as it:
        it.supervisor.begin_drain(0.0)

        with pytest.raises(ConflictError):
            it.supervisor.restart("e0", "local")
        assert it.engine().state == "draining"
