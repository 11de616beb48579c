"""Clients with engines of their own: how they start, fail to start, and leave nothing behind."""

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec
import psutil
import pytest

from engine.client.core_client import (
    EngineDeadError,
    EngineStartError,
    EngineUnreachableError,
    UtilityTimeoutError,
)
from engine.client.factory import OfflinePlan, make_client
from engine.client.handshake import Handshake
from engine.client.inproc import InprocClient
from engine.client.launch import EngineProcess, LocalEngines, private_directory
from engine.client.sync_mp import SyncMPClient
from engine.wire.calls import Ping
from engine.wire.header import new_context
from tests.engine.client.drivers import FAKE, ROOT, a_config, a_request, is_alive
from tests.engine.core.kv_runner import KvRunner

pytestmark = [pytest.mark.process]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_dir: Path):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(run_dir))
    monkeypatch.setattr("tempfile.tempdir", None)


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def wait_until(claim: Callable[[], object], timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def a_plan(model: str = "fake", **changes: object) -> OfflinePlan:
    return OfflinePlan(
        **{"config": a_config(model), "start_timeout_s": 20.0, "module": FAKE, **changes}
    )


def sync_client(plan: OfflinePlan):
    return make_client(plan, Handshake(plan.engine_ids), multiprocess=True, asyncio=False)


def test_a_client_starts_its_engines_and_knows_what_they_have_room_for(run_dir: Path):
    handshake = Handshake(("e0", "e1"))
    before = children()
    client = make_client(a_plan(num_engines=2), handshake, multiprocess=True, asyncio=False)

    started = children() - before
    assert len(started) == 2
    assert {ready.max_model_len for ready in handshake.ready.values()} == {512}
    (private,) = run_dir.glob("quarterdeck-*")
    assert private.stat().st_mode & 0o777 == 0o700

    client.close()

    assert not started & children()
    assert not private.exists()


def test_a_time_out_says_what_the_engine_was_at_and_cleans_up(run_dir: Path):
    before = children()

    with pytest.raises(EngineStartError, match=r"not ready within 0.2 s: e0: "):
        sync_client(a_plan("never-ready", start_timeout_s=0.2))

    assert children() == before
    assert not list(run_dir.glob("quarterdeck-*"))


def test_an_engine_that_ends_while_it_starts_shows_its_last_lines(tmp_path: Path):
    with pytest.raises(EngineStartError, match=r"engine e0 ended with 3 .*\n.*no such luck"):
        sync_client(a_plan("crash", log_dir=tmp_path))

    assert "no such luck" in (tmp_path / "e0.log").read_text()


def test_a_long_temporary_directory_is_not_used_for_sockets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / ("long" * 20)).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("long" * 20)))

    private = private_directory()
    assert len(str(private)) < 60
    private.rmdir()


def test_an_engine_that_ignores_sigterm_is_killed():
    run_dir = private_directory()
    ended: list[tuple[str, int, int]] = []
    process = EngineProcess(
        msgspec.structs.replace(a_config("stubborn"), clients=()),
        run_dir / "log",
        lambda *what: ended.append(what),
        "tests.engine.client.deaf_process",
    )
    engines = LocalEngines([process])
    engines.start()
    wait_until(lambda: "deaf" in process.tail())

    engines.stop(grace_s=0.2)

    assert ended == [("e0", 1, -signal.SIGKILL)]
    assert process.pid not in children()


def test_a_process_that_cannot_be_started_ends_those_before_it(
    monkeypatch: pytest.MonkeyPatch, run_dir: Path
):
    before, popen, calls = children(), subprocess.Popen, []

    def one_only(*arguments: object, **options: object) -> object:
        calls.append(arguments)
        if len(calls) > 1:
            raise OSError("no more processes")
        return popen(*arguments, **options)

    monkeypatch.setattr("engine.client.launch.subprocess.Popen", one_only)
    with pytest.raises(EngineStartError, match="e1 could not be started: no more processes"):
        sync_client(a_plan(num_engines=2))

    assert children() == before
    assert not list(run_dir.glob("quarterdeck-*"))


def test_a_client_that_nobody_holds_takes_its_engines_with_it():
    before = children()
    client = sync_client(a_plan())
    assert children() != before

    del client
    gc.collect()

    wait_until(lambda: children() == before)


def test_an_engine_dies_with_a_parent_that_is_killed(tmp_path: Path):
    script = (
        "import os, threading\n"
        "from tests.engine.client.test_launch import a_plan, children, sync_client\n"
        "made = []\n"
        "maker = threading.Thread(target=lambda: made.append(sync_client(a_plan())))\n"
        "maker.start(); maker.join()\n"  # the thread that made it is gone: the engine is not
        "print(*children(), flush=True)\n"
        "os.read(0, 1)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    with parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 1
        assert is_alive(pids[0])

        os.kill(parent.pid, signal.SIGKILL)

        wait_until(lambda: not is_alive(pids[0]))


def test_an_engine_in_this_process_is_for_one_thread_only():
    plan = a_plan()

    with pytest.raises(NotImplementedError, match="another process"):
        make_client(plan, Handshake(plan.engine_ids), multiprocess=False, asyncio=True)
    with pytest.raises(ValueError, match="2 engines"):
        make_client(
            a_plan(num_engines=2), Handshake(("e0", "e1")), multiprocess=False, asyncio=False
        )


def test_ctrl_c_in_a_step_ends_the_engine_in_this_process_without_an_alarm(
    caplog: pytest.LogCaptureFixture,
):
    def interrupt(_batch: object) -> NoReturn:
        raise KeyboardInterrupt

    runner = KvRunner(64, 16, 800)
    client = InprocClient(a_config(), make_runner=lambda _: runner)
    runner.execute = interrupt
    client.add_request("e0", a_request("r"), new_context(), external_id="r")

    with pytest.raises(KeyboardInterrupt):
        client.get_outputs(5)
    with pytest.raises(EngineDeadError, match="it was interrupted in a step"):
        client.get_outputs(5)
    client.close()
    assert not caplog.records


def test_clients_that_come_and_go_leave_no_descriptor_open(run_dir: Path):
    def come_and_go() -> int:
        client = SyncMPClient("x", 1, run_dir, on_message=lambda *_: None)
        client.expect("e0", 1)
        client.close()
        return len(list(Path("/proc/self/fd").iterdir()))

    before = come_and_go()
    assert [come_and_go() for _ in range(20)] == [before] * 20


def test_death_is_noticed_without_a_message():
    before = children()
    client = sync_client(a_plan())
    (pid,) = children() - before

    os.kill(pid, signal.SIGKILL)

    def is_dead() -> bool:
        try:
            client.call("e0", Ping(), timeout_s=1, context=new_context())
        except EngineDeadError as error:
            return "-9" in str(error)
        except (UtilityTimeoutError, EngineUnreachableError):
            return False
        return False

    wait_until(is_dead)
    client.close()
