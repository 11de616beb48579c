"""Children of this machine: what they inherit, who hears them, how they die."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.supervisor.launcher.identity import (
    ProcessIdentity,
    identity_of,
    is_running,
    kill_exactly,
)
from appliance.supervisor.launcher.launcher import ProcessSpec
from appliance.supervisor.launcher.local import LocalLauncher, child_environment
from appliance.supervisor.termination import HUNG, describe_exit, terminate

pytestmark = [pytest.mark.anyio, pytest.mark.process]

PROGRAM = """
import json, os, sys
arguments = dict(zip(sys.argv[1::2], map(int, sys.argv[2::2])))
config = json.load(os.fdopen(arguments["--config-fd"]))
print("said", config["word"], flush=True)
if config["then"] == "stubborn":
    import signal
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGABRT):
        signal.signal(number, lambda *_: print("no", flush=True))
print("open", sorted(os.listdir("/proc/self/fd")), flush=True)
if config["then"] == "env":
    print(*os.environ, flush=True)
    sys.exit(3)
sys.stdout.write("no newline")
sys.stdout.flush()
while config["then"] == "stubborn":
    signal.pause()
os.read(arguments["--parent-fd"], 1)
sys.exit(7)
"""


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> LocalLauncher:
    (tmp_path / "a_child.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return LocalLauncher(lambda _, line: lines.append(line))


def spec(then: str, fds: tuple[int, ...] = ()) -> ProcessSpec:
    config = b'{"word": "hello", "then": "%s"}' % then.encode()
    return ProcessSpec("e0", "a_child", config, fds)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.01)


async def test_a_child_reads_its_configuration_and_its_lines_are_heard(
    launcher: LocalLauncher, lines: list[str]
):
    child = launcher.spawn(spec("env"))

    assert await child.wait() == 3
    assert child.returncode == 3
    assert lines[0] == "said hello"
    assert child.tail(1) == lines[-1:]
    assert not child.signal(signal.SIGTERM)
    child.close()


async def test_a_child_inherits_no_descriptor_that_is_not_its_own(
    launcher: LocalLauncher, lines: list[str]
):
    ours = os.open("/dev/null", os.O_RDONLY)
    handed = os.open("/dev/null", os.O_RDONLY)
    first = launcher.spawn(spec("env"))
    second = launcher.spawn(spec("env", (handed,)))
    await first.wait()
    await second.wait()
    first.close()
    second.close()
    os.close(ours)
    os.close(handed)

    opened = [line for line in lines if line.startswith("open")]
    assert all(f"'{ours}'" not in line for line in opened)
    assert sum(f"'{handed}'" in line for line in opened) == 1
    assert all(line.count("'") // 2 <= 7 for line in opened), "0 1 2, parent, handed, listdir's own"


async def test_a_child_sees_the_end_of_its_parent_as_the_end_of_a_pipe(
    launcher: LocalLauncher, lines: list[str]
):
    child = launcher.spawn(spec("wait"))
    await until(lambda: len(lines) >= 2)
    os.close(child._death_pipe)  # what the kernel does when the supervisor dies

    assert await child.wait() == 7
    assert lines[-1] == "no newline", "a last line without an end is heard too"
    child._death_pipe = os.open("/dev/null", os.O_RDONLY)
    child.close()


async def test_a_stubborn_child_is_killed_and_its_end_confirmed(
    launcher: LocalLauncher, lines: list[str], monkeypatch: pytest.MonkeyPatch
):
    child = launcher.spawn(spec("stubborn"))
    await until(lambda: any(line.startswith("open") for line in lines))
    quick = [(number, 0.1) for number, _ in HUNG]

    assert describe_exit(await terminate(child, quick)) == "SIGKILL"
    assert child.tail(3)[-2:] == ["no newlineno", "no"]
    child.close()


async def test_only_the_main_thread_may_spawn(launcher: LocalLauncher):
    errors: list[BaseException] = []

    def try_it() -> None:
        try:
            launcher.spawn(spec("env"))
        except AssertionError as error:
            errors.append(error)

    thread = threading.Thread(target=try_it)
    thread.start()
    thread.join()

    assert len(errors) == 1


async def test_an_identity_is_the_pid_and_its_start(launcher: LocalLauncher):
    child = launcher.spawn(spec("wait"))
    identity = identity_of(child.pid)
    assert identity is not None
    stranger = ProcessIdentity(child.pid, identity.start_ticks + 1)

    assert is_running(identity)
    assert not is_running(stranger)
    assert not kill_exactly(stranger)
    assert kill_exactly(identity)
    assert await child.wait() == -signal.SIGKILL
    assert not is_running(identity)
    assert not kill_exactly(identity)
    child.close()


def test_secrets_do_not_go_to_children():
    environment = {
        "QUARTERDECK_API_KEY": "1",
        "QUARTERDECK_ADMIN_KEYS": "2",
        "HF_TOKEN": "3",
        "OTEL_EXPORTER_OTLP_HEADERS": "4",
        "MY_SECRET": "5",
        "SSHPASS": "6",
        "MYTOKEN": "7",
        "TOKENIZERS_PARALLELISM": "kept",
        "PATH": "kept",
        "KEYBOARD": "kept",
    }

    kept = child_environment(environment)

    assert {name for name, value in kept.items() if value == "kept"} == {
        "TOKENIZERS_PARALLELISM",
        "PATH",
        "KEYBOARD",
    }
    assert set(kept) - set(environment) == {"PYTHONUNBUFFERED"}
    assert not set("1234567") & {kept[n] for n in kept if n != "PYTHONUNBUFFERED"}


@pytest.mark.parametrize(
    ("status", "said"),
    [(0, "exit code 0"), (78, "exit code 78"), (-9, "SIGKILL"), (-64, "SIGRTMAX")],
)
def test_an_exit_status_is_said_in_words(status: int, said: str):
    assert describe_exit(status) == said
