"""The dashboard in a real terminal: tmux, 80 columns by 24 lines, under load."""

import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator

import pytest

from tests.integration.appliance_process import QUARTERDECK, ApplianceProcess, wait_until

pytestmark = pytest.mark.process


class Terminal:
    """A tmux session with one program in it."""

    def __init__(self, name: str, command: str, env: dict[str, str]) -> None:
        self._name = name
        assert shutil.which("tmux"), "install tmux (see .ci/run)"
        exports = " ".join(
            f"{key}={shlex.quote(value)}"
            for key, value in env.items()
            if key.startswith("QUARTERDECK_")
        )
        self._tmux("new-session", "-d", "-x", "80", "-y", "24", f"{exports} {command}")

    def _tmux(self, *args: str) -> str:
        command = ["tmux", "-L", self._name, *args]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    def keys(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self._name, "kill-server"], check=False, capture_output=True)


@pytest.fixture
def terminal(tiny_appliance: ApplianceProcess) -> Iterator[Terminal]:
    terminal = Terminal(
        f"qd{tiny_appliance.instance['port']}",
        shlex.join([*QUARTERDECK, "top"]),
        tiny_appliance.env,
    )
    yield terminal
    terminal.close()


def test_top_shows_the_fleet_under_load_and_sleeps_and_wakes_the_engine(
    tiny_appliance: ApplianceProcess, terminal: Terminal
):
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            tiny_appliance.chat("load", max_tokens=100, ignore_eos=True)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        wait_until(lambda: "READY" in terminal.screen(), 20, "the fleet is on screen")
        wait_until(lambda: "DECODE" in terminal.screen().upper(), 20, "a live request is shown")
        assert all(len(line) <= 80 for line in terminal.screen().splitlines())
    finally:
        stop.set()
        thread.join()

    _why_and_when(terminal)
    terminal.keys("s")
    wait_until(lambda: "Sleep engine e0" in terminal.screen(), 10)
    assert tiny_appliance.engine()["state"] == "ready", "nothing happens before it is confirmed"
    terminal.keys("BTab", "Enter")
    wait_until(lambda: tiny_appliance.engine()["state"] == "asleep", 20)
    wait_until(lambda: "ASLEEP" in terminal.screen() and "slept e0" in terminal.screen(), 10)
    terminal.keys("w")
    wait_until(lambda: "Wake engine e0" in terminal.screen(), 10)
    terminal.keys("BTab", "Enter")
    wait_until(lambda: tiny_appliance.engine()["state"] == "ready", 20)
    wait_until(lambda: "woke e0" in terminal.screen(), 10)
    terminal.keys("q")


def _why_and_when(terminal: Terminal) -> None:
    """The three questions, each in at most three keys, against the real routes."""
    assert "SLO" in terminal.screen(), "are we about to break our promise? no key at all"
    terminal.keys("3")
    wait_until(lambda: "✓ DONE" in terminal.screen() and "/ filter" in terminal.screen(), 20)
    terminal.keys("Enter")
    wait_until(lambda: "POST /v1" in terminal.screen() and "why" in terminal.screen(), 20)
    wait_until(lambda: "critical path" in terminal.screen(), 20, "the explanation came")
    terminal.keys("m")
    wait_until(lambda: "What happened at" in terminal.screen(), 10)
    terminal.keys("Enter")
    wait_until(lambda: "this hour" in terminal.screen() and "finished" in terminal.screen(), 20)
    terminal.keys("6")
    wait_until(lambda: "[events]" in terminal.screen() and "engine.ready" in terminal.screen(), 10)
    terminal.keys("l")
    wait_until(lambda: "[logs]" in terminal.screen() and "e0" in terminal.screen(), 10)
    terminal.keys("a")
    wait_until(lambda: "[audit]" in terminal.screen(), 10)
    terminal.keys("2")
    wait_until(lambda: "last steps" in terminal.screen() and "done" in terminal.screen(), 10)
    wait_until(lambda: "step time" in terminal.screen() and "forward" in terminal.screen(), 10)
    assert "in all" in terminal.screen(), "how long the start took, by its phases"
    terminal.keys("y")
    wait_until(lambda: "slowest per minute" in terminal.screen(), 10)
    terminal.keys("1")
    wait_until(lambda: "throughput" in terminal.screen(), 10)
    terminal.keys("f")
    wait_until(lambda: "Profile engine e0" in terminal.screen(), 10)
    terminal.keys("Escape")
    wait_until(lambda: "Profile engine" not in terminal.screen(), 10)
