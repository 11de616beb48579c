"""Stacks of a live or stuck process, from outside or from inside."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from appliance.supervisor.launcher.launcher import ProcessSpec
from appliance.supervisor.launcher.local import LocalChild, LocalLauncher
from appliance.supervisor.stacks import StacksError, dump_stacks

pytestmark = [pytest.mark.anyio, pytest.mark.process]

PROGRAM = """
import argparse, faulthandler, signal, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--config-fd")
parser.add_argument("--parent-fd")
parser.parse_args()
print("an earlier line", flush=True)
def spin_for_ever():
    print("up", flush=True)
    while True:
        time.sleep(60)
if {handles}:
    faulthandler.register(signal.SIGUSR1)
else:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
spin_for_ever()
"""


@pytest.fixture
async def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[object]:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    children: list[LocalChild] = []

    async def start(*, handles: bool) -> LocalChild:
        (tmp_path / "stuck_program.py").write_text(PROGRAM.replace("{handles}", str(handles)))
        up = asyncio.Event()
        launcher = LocalLauncher(lambda _, line: up.set() if "up" in line else None)
        child = launcher.spawn(ProcessSpec("e0", "stuck_program", b"{}"))
        children.append(child)
        await up.wait()
        return child

    yield start
    for child in children:
        child.signal(signal.SIGKILL)
        await child.wait()
        child.close()


def nowhere() -> Path:
    return Path("/nowhere/py-spy")


def refused() -> Path:
    return Path("/bin/false")


async def test_py_spy_sees_where_a_process_is(start):
    child = await start(handles=True)

    dump = await dump_stacks("e0", child)

    assert (dump.tool, dump.pid) == ("py-spy", child.pid)
    assert "spin_for_ever (stuck_program.py:" in dump.text


async def test_py_spy_sees_a_stopped_process_too(start):
    child = await start(handles=True)
    child.signal(signal.SIGSTOP)
    await asyncio.to_thread(os.waitid, os.P_PID, child.pid, os.WSTOPPED)

    dump = await dump_stacks("e0", child)

    assert dump.tool == "py-spy"
    assert "spin_for_ever" in dump.text


@pytest.mark.parametrize("py_spy", [nowhere, refused])
async def test_without_py_spy_the_process_writes_its_own_stacks(start, py_spy):
    child = await start(handles=True)

    for _ in range(2):
        dump = await dump_stacks("e0", child, py_spy)

        assert dump.tool == "faulthandler"
        assert "in spin_for_ever" in dump.text
        assert "earlier line" not in dump.text


async def test_when_neither_works_it_says_why(start):
    child = await start(handles=False)

    with pytest.raises(StacksError, match="does not answer SIGUSR1"):
        await dump_stacks("e0", child, nowhere)


async def test_py_spy_comes_with_the_product():
    program = Path(sys.executable).parent / "py-spy"
    version = await asyncio.to_thread(subprocess.run, [program, "--version"], capture_output=True)
    assert version.returncode == 0
