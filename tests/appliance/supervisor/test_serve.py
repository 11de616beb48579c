"""The whole `serve` as a process: real supervisor, real gateway, a fake engine."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx
import pytest

from appliance.config.paths import Instance, NotRunningError, find_instance
from appliance.supervisor.launcher.identity import ProcessIdentity, identity_of, is_running
from tests.appliance.supervisor.appliance_under_test import ROOT

pytestmark = pytest.mark.process

WAIT_S = 60.0


class Served:
    """A started appliance and what it printed."""

    def __init__(self, model: Path, state_dir: Path, ports: tuple[int, int], out: Path) -> None:
        self.state_dir = state_dir
        self.out = out
        self.file: IO[bytes] = out.open("wb")
        self.started_s = time.monotonic()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.appliance.supervisor.appliance_process"),
                *(str(model), str(state_dir), str(ports[0]), str(ports[1]), "2"),
            ],
            stdout=self.file,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "QUARTERDECK_API_KEY": "not-for-children"},
        )

    @property
    def text(self) -> str:
        return self.out.read_text()

    def until(self, pattern: str) -> str:
        deadline_s = time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s:
            if found := re.search(pattern, self.text):
                return found.group()
            assert self.process.poll() is None, self.text
            time.sleep(0.02)
        raise AssertionError(f"{pattern} did not come:\n{self.text}")

    def children(self) -> list[ProcessIdentity]:
        lines = (self.instance.run_dir / "children").read_text().split()
        pids = [int(pid) for pid in lines[::2]]
        return [identity for pid in pids if (identity := identity_of(pid))]

    @property
    def instance(self) -> Instance:
        return find_instance(self.state_dir)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.file.close()


@pytest.fixture
def ports() -> tuple[int, int]:
    """Two ports that were free a moment ago."""
    found = []
    for _ in range(2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            found.append(probe.getsockname()[1])
    return found[0], found[1]


@pytest.fixture
def start(
    tiny_model_path: Path, tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator:
    started: list[Served] = []
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run_dir))

    def serve(ports: tuple[int, int], state: str = "state") -> Served:
        out = tmp_path / f"out-{len(started)}"
        started.append(Served(tiny_model_path, tmp_path / state, ports, out))
        return started[-1]

    yield serve
    for served in started:
        served.end()


def none_runs(identities: list[ProcessIdentity], within_s: float) -> bool:
    deadline_s = time.monotonic() + within_s
    while any(map(is_running, identities)):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def policies(pid: int) -> set[int]:
    """Return the scheduling policies of a process's threads."""
    found: set[int] = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # one that ended just now
            found.add(os.sched_getscheduler(int(thread.name)))
    return found


def test_an_appliance_starts_answers_and_ends_in_order(start, ports: tuple[int, int]):
    served: Served = start(ports)
    served.until("ready in")
    instance = served.instance
    secret = re.search(r"inference key, shown once:  (\S+)", served.text)
    assert secret is not None

    with httpx.Client(timeout=10) as web:
        # the gateway is told within a moment; a request that comes earlier is held
        answer = web.post(
            f"http://127.0.0.1:{ports[0]}/v1/completions",
            json={"model": "tiny", "prompt": "hello", "max_tokens": 3},
            headers={"Authorization": f"Bearer {secret.group(1)}"},
        )
        assert answer.status_code == 200
        assert web.get(f"http://127.0.0.1:{ports[0]}/readyz").status_code == 200
        assert web.get(f"http://127.0.0.1:{ports[1]}/admin/v1/engines").status_code == 401
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(instance.admin_socket))) as local:
        [row] = local.get("http://localhost/admin/v1/engines").json()["items"]
        assert (row["id"], row["state"], row["model"]) == ("e0", "ready", "tiny")
    for path in (instance.data_socket, instance.admin_socket):
        assert path.stat().st_mode & 0o777 == 0o600

    children = served.children()
    assert len(children) == 2
    assert policies(served.process.pid) == {os.SCHED_BATCH}
    for child in children:
        assert policies(child.pid) == {os.SCHED_OTHER}
        environment = Path(f"/proc/{child.pid}/environ").read_bytes()
        assert b"not-for-children" not in environment
        command = Path(f"/proc/{child.pid}/cmdline").read_bytes()
        assert secret.group(1).encode() not in command

    for taken in ((0, 0), ports):
        second: Served = start(taken)
        assert second.process.wait(WAIT_S) == 1
        assert f"(process {served.process.pid}) already runs with" in second.text
    third: Served = start(ports, "other")
    assert third.process.wait(WAIT_S) == 1
    assert f"port {ports[0]} on 127.0.0.1 is in use" in third.text
    assert "(set by --port)" in third.text
    assert httpx.get(f"http://127.0.0.1:{ports[0]}/readyz").status_code == 200

    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(9 + 1) == 0, served.text
    assert none_runs(children, 0.1)
    assert not instance.run_dir.exists()
    with pytest.raises(NotRunningError):
        find_instance(served.state_dir)
    assert "Traceback" not in served.text


def test_a_killed_supervisor_leaves_nothing_and_its_successor_starts_at_once(
    start, ports: tuple[int, int]
):
    served: Served = start(ports)
    served.until("ready in")
    children = served.children()
    run_dir = served.instance.run_dir
    assert len(children) == 2

    served.process.kill()
    served.process.wait()
    assert none_runs(children, 2.0)

    again: Served = start(ports)
    again.until("ready in")
    assert again.instance.run_dir != run_dir
    assert not run_dir.exists()
    assert "Keys exist already" in again.text
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(again.instance.admin_socket))) as local:
        [row] = json.loads(local.get("http://localhost/admin/v1/engines").text)["items"]
    assert row["epoch"] == 2
    again.process.terminate()
    assert again.process.wait(9 + 1) == 0, again.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_right_after_the_port_opens_ends_it_in_order(
    start, ports: tuple[int, int], number: signal.Signals
):
    served: Served = start(ports)
    deadline_s = time.monotonic() + WAIT_S
    with socket.socket() as probe:
        while probe.connect_ex(("127.0.0.1", ports[0])) and time.monotonic() < deadline_s:
            time.sleep(0.002)
        served.process.send_signal(number)

    assert served.process.wait(9 + 1) == 0, served.text
    assert "Traceback" not in served.text
    assert not (served.state_dir / "instance.json").exists()


def test_a_state_file_that_is_none_is_said_in_one_line(start, tmp_path: Path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "state.sqlite3").write_text("no database" * 100)

    served: Served = start((0, 0))

    assert served.process.wait(WAIT_S) == 1
    assert served.text.splitlines() == [
        f"quarterdeck: cannot use {tmp_path}/state/state.sqlite3: file is not a database"
    ]
