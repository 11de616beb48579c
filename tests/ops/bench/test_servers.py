"""Servers under comparison are real processes: they rest, go on, and leave nothing behind."""

import asyncio
import os
import stat
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from comparison.fleet import Fleet
from comparison.servers import Server, ServerError, start, tree_cpu_s
from comparison.subjects import SUBJECTS, Peers

from appliance.cli.bench_figures import Outcome
from appliance.cli.bench_load import Load

ROOT = Path(__file__).parents[3]
LLAMA = """#!{python}
import sys
sys.path.insert(0, {root!r})
from tests.appliance.cli.fake_data_plane import FakeDataPlane, completion_lines, _TcpServer
plane = FakeDataPlane(lambda body: completion_lines(body["max_tokens"]))
port = int(sys.argv[sys.argv.index("--port") + 1])
_TcpServer(("127.0.0.1", port), plane._handler()).serve_forever()
"""
OPENVINO = """#!{python}
import json, sys
print("a line of the library")
print(json.dumps(dict(ready=True)), flush=True)
for line in sys.stdin:
    load = json.loads(line)
    one = dict(started_s=1.0, chunks_s=[1.5, 2.0], output_tokens=2, prompt_tokens=9, ended_s=2.0)
    samples = [one for _ in load["prompts"]]
    print(json.dumps(dict(samples=samples, started_s=1.0, ended_s=3.0)), flush=True)
"""
LOAD = Load(slots=2, requests=4, prompt_words=12, output_tokens=3, max_seconds=20)


@pytest.fixture
def peers(tmp_path: Path) -> Peers:
    """Programs that answer as the peers do."""
    found = Peers(tmp_path / "cache", threads=1)
    for name, script in (("llama-q4_0", LLAMA), ("openvino", OPENVINO)):
        program = found.program(SUBJECTS[name])
        program.parent.mkdir(parents=True)
        program.write_text(script.format(python=sys.executable, root=str(ROOT)))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return found


def status_of(pid: int) -> str:
    """What the kernel says, once a signal has arrived."""
    with psutil.Process(pid).oneshot():
        return psutil.Process(pid).status()


def measured(server: Server) -> Outcome:
    return asyncio.run(server.measure(LOAD, "seed"))


@pytest.mark.process
def test_a_server_is_measured_rests_without_cpu_goes_on_and_ends(peers: Peers, tmp_path: Path):
    server = start(SUBJECTS["llama-q4_0"], peers, 2, "smollm2", tmp_path)
    try:
        assert len(measured(server).samples) == 4
        server.rest()
        used_s = tree_cpu_s(server.pid)
        assert os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT) is not None
        assert status_of(server.pid) == psutil.STATUS_STOPPED
        assert tree_cpu_s(server.pid) == used_s > 0
        server.wake()
        assert all(sample.ended_s for sample in measured(server).samples)
    finally:
        server.stop()
    assert not psutil.pid_exists(server.pid)
    assert server.command.startswith("CACHE/llama/build/bin/llama-server -m CACHE/smollm2-Q4_0")


@pytest.mark.process
def test_a_server_that_rests_can_be_ended(peers: Peers, tmp_path: Path):
    server = start(SUBJECTS["llama-q4_0"], peers, 2, "smollm2", tmp_path)
    server.rest()

    server.stop()
    assert not psutil.pid_exists(server.pid)


@pytest.mark.process
def test_the_driver_in_another_interpreter_answers_with_samples(peers: Peers, tmp_path: Path):
    server = start(SUBJECTS["openvino"], peers, 0, "smollm2", tmp_path)
    try:
        outcome = measured(server)
    finally:
        server.stop()

    assert [sample.prompt_tokens for sample in outcome.samples] == [9] * 4
    assert outcome.until_s - outcome.since_s == 2.0


@pytest.mark.process
def test_a_server_that_does_not_start_is_an_error_with_its_last_words(peers: Peers, tmp_path: Path):
    peers.program(SUBJECTS["llama-q4_0"]).write_text("#!/bin/sh\necho no model here >&2; exit 3\n")

    with pytest.raises(ServerError, match="no model here"):
        start(SUBJECTS["llama-q4_0"], peers, 2, "smollm2", tmp_path)


class Recorder:
    """A server that notes what is done to it."""

    command, pid = "recorder", 0

    def __init__(self) -> None:
        self.done: list[str] = []

    async def measure(self, load: Load, seed: str) -> Outcome:
        raise ServerError(f"{load.slots} {seed}")

    def facts(self) -> dict[str, Any]:
        return {"weights_bytes": 1}

    def rest(self) -> None:
        self.done.append("rest")

    def wake(self) -> None:
        self.done.append("wake")

    def stop(self) -> None:
        self.done.append("stop")


class Starts:
    """Starts recorders, and keeps them by subject and streams."""

    def __init__(self) -> None:
        self.made: list[tuple[str, int, Recorder]] = []

    def __call__(self, subject: Any, streams: int) -> Recorder:
        self.made.append((subject.name, streams, Recorder()))
        return self.made[-1][2]


def test_servers_are_started_once_and_rest_between_their_turns():
    starts = Starts()
    fleet = Fleet(starts)
    for streams in (1, 8, 8):
        for name in ("vllm", "llama-q4_0"):
            with fleet.turn(SUBJECTS[name], streams):
                pass
    fleet.close()

    done = {(name, streams): server.done for name, streams, server in starts.made}
    assert done == {
        ("vllm", 1): ["rest", "wake", "rest", "wake", "rest", "stop"],
        ("llama-q4_0", 1): ["rest", "stop"],
        ("llama-q4_0", 8): ["rest", "wake", "rest", "stop"],
    }
    assert fleet.facts["vllm"] == {"weights_bytes": 1}


def test_the_one_that_rests_longest_is_ended_when_memory_is_short():
    starts, free = Starts(), [64 << 30]
    fleet = Fleet(starts, lambda: free[0])
    for name in ("llama-q4_1", "llama-q4_0"):
        with fleet.turn(SUBJECTS[name], 1):
            pass
    free[0] = 1 << 30
    with fleet.turn(SUBJECTS["vllm"], 1):
        pass

    assert [server.done for _, _, server in starts.made] == [
        ["rest", "stop"],
        ["rest", "stop"],
        ["rest"],
    ]


def test_a_server_that_failed_is_ended_and_started_anew():
    starts = Starts()
    fleet = Fleet(starts)
    with pytest.raises(ServerError), fleet.turn(SUBJECTS["vllm"], 1) as server:
        asyncio.run(server.measure(LOAD, "seed"))
    with fleet.turn(SUBJECTS["vllm"], 1):
        pass

    assert [server.done for _, _, server in starts.made] == [["stop"], ["rest"]]
