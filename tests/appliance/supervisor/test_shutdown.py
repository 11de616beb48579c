"""The ordered end of the appliance."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from appliance.supervisor.shutdown import CEILING_EXIT, Shutdown

pytestmark = pytest.mark.anyio


class Endable:
    """Writes down what is asked of it; its gateways drain when `go` is set."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go = asyncio.Event()
        self.is_waiting = asyncio.Event()

    def begin_drain(self, drain_s: float) -> None:
        self.asked.append(f"drain {drain_s:g}")

    async def drained(self, timeout_s: float) -> bool:
        self.is_waiting.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self.go.wait()
        except TimeoutError:
            return False
        return True

    def stop(self) -> None:
        self.asked.append("stop")

    def kill(self) -> None:
        self.asked.append("kill")


@pytest.fixture(autouse=True)
def no_ceiling(monkeypatch: pytest.MonkeyPatch):
    """The ceiling would end the test process; it has a test of its own."""
    monkeypatch.setattr("appliance.supervisor.shutdown.start_ceiling", lambda after_s: None)


async def test_a_signal_drains_and_then_stops():
    appliance, shutdown = Endable(), Shutdown(drain_s=30)
    with shutdown.signals():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(shutdown.run(appliance))
            await asyncio.sleep(0)
            assert appliance.asked == []
            os.kill(os.getpid(), signal.SIGTERM)
            await appliance.is_waiting.wait()
            assert appliance.asked == ["drain 30"]
            appliance.go.set()

    assert appliance.asked == ["drain 30", "stop"]


async def test_the_signals_do_afterwards_what_they_did_before():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with Shutdown(drain_s=30).signals():
        pass

    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


async def test_the_deadline_ends_the_drain():
    appliance, shutdown = Endable(), Shutdown(drain_s=-0.99)
    shutdown.request()

    await shutdown.run(appliance)

    assert appliance.asked == ["drain -0.99", "stop"]


async def test_a_second_signal_ends_all_at_once():
    appliance, shutdown = Endable(), Shutdown(drain_s=30)
    with shutdown.signals():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(shutdown.run(appliance))
            os.kill(os.getpid(), signal.SIGINT)
            await appliance.is_waiting.wait()
            os.kill(os.getpid(), signal.SIGINT)

    assert appliance.asked == ["drain 30", "kill", "stop"]


@pytest.mark.process
async def test_the_ceiling_ends_a_process_whose_loop_is_stuck():
    program = (
        "from appliance.supervisor.shutdown import start_ceiling\n"
        "import time\n"
        "start_ceiling(0.1)\n"
        "time.sleep(60)\n"
    )
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], timeout=20)

    assert done.returncode == CEILING_EXIT
