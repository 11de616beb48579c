"""Servers under measurement: started, waited for, put to rest, ended. One class for each kind."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Protocol

import httpx
import psutil
from overhead.subject import Subject as Appliance
from overhead.subject import SubjectError

from appliance.cli.bench_client import BenchTarget
from appliance.cli.bench_figures import Outcome, Sample
from appliance.cli.bench_load import Load, Run
from appliance.cli.data_plane import DataPlaneError
from comparison.prompts import prompt_of
from comparison.subjects import Peers, Subject

START_S = 300.0
STOP_S = 30.0
POLL_S = 0.2
GRACE_S = 30.0


class ServerError(Exception):
    """A server did not start, or did not answer as it should."""


class Server(Protocol):
    """What the measurement needs of each."""

    command: str
    pid: int

    async def measure(self, load: Load, seed: str) -> Outcome:
        """Run a load.

        Raises:
            ServerError: not all requests were answered.
        """
        ...

    def rest(self) -> None:
        """Use no CPU until `wake`."""
        ...

    def wake(self) -> None:
        """Be ready again."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return what it says about itself."""
        ...

    def stop(self) -> None:
        """End it, with force if need be."""
        ...


class Quarterdeck:
    """Our appliance. It rests by itself: its idle CPU is measured by `startup.py`.

    Stopping its processes is no way for it to rest: its supervisor would restart an engine that
    gave no sign of life.
    """

    def __init__(self, subject: Subject, model: str, threads: int, root: Path) -> None:
        flags = [*subject.flags, "--num-threads", str(threads), *_cache_flags(root)]
        own = root / subject.name
        own.mkdir(exist_ok=True)
        self._appliance = Appliance(own, model, flags)
        self.command = f"quarterdeck serve {model} " + " ".join(flags[:-2])
        self.pid = self._appliance.pid
        try:
            self._appliance.wait_ready()
        except BaseException as error:
            self._appliance.stop()
            if isinstance(error, SubjectError):
                raise ServerError(str(error)) from error
            raise
        url = f"http://127.0.0.1:{self._appliance.port}"
        self._target = BenchTarget(url=url, api_key=self._appliance.api_key)

    async def measure(self, load: Load, seed: str) -> Outcome:
        """Run a load over HTTP."""
        return await _run(self._target, self._appliance.model, load, seed)

    def rest(self) -> None:
        """Nothing to do."""

    def wake(self) -> None:
        """Nothing to do."""

    def facts(self) -> dict[str, Any]:
        """Return what the engine told at its start."""
        return self._appliance.engines()[0]

    def stop(self) -> None:
        """Drain and end."""
        self._appliance.stop()


def _cache_flags(root: Path) -> list[str]:
    return ["--weight-cache", str(root / "weights")]


class _Process:
    """A peer's process group."""

    def __init__(self, subject: Subject, peers: Peers, streams: int, root: Path) -> None:
        self._port = _free_port()
        words = peers.command(subject, streams, self._port)
        self.command = _shown(words, peers)
        self._log = root / f"{subject.name}-{streams}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the peer
                words,
                env=os.environ | peers.environment(subject),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if not subject.is_server else log,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def rest(self) -> None:
        """Stop all its processes."""
        os.killpg(self.pid, signal.SIGSTOP)

    def wake(self) -> None:
        """Let them go on."""
        os.killpg(self.pid, signal.SIGCONT)

    def facts(self) -> dict[str, Any]:
        """Peers are asked nothing."""
        return {}

    def stop(self) -> None:
        """End its group, with force if it does not go."""
        with contextlib.suppress(ProcessLookupError):
            self.wake()
            os.killpg(self.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _failed(self, what: str) -> ServerError:
        tail = self._log.read_text(errors="replace")[-1500:]
        return ServerError(f"{what}:\n{tail}")


class HttpPeer(_Process):
    """llama.cpp's server or vLLM."""

    def __init__(self, subject: Subject, peers: Peers, streams: int, root: Path) -> None:
        super().__init__(subject, peers, streams, root)
        url = f"http://127.0.0.1:{self._port}"
        self._target = BenchTarget(url=url)
        try:
            self._wait_ready(url)
        except BaseException:
            self.stop()
            raise

    async def measure(self, load: Load, seed: str) -> Outcome:
        """Run a load over HTTP."""
        return await _run(self._target, "x", load, seed)

    def _wait_ready(self, url: str) -> None:
        deadline_s = time.monotonic() + START_S
        with httpx.Client(trust_env=False, timeout=5) as client:
            while time.monotonic() < deadline_s and self._process.poll() is None:
                with contextlib.suppress(httpx.TransportError):
                    if client.get(f"{url}/health").is_success:
                        return
                time.sleep(POLL_S)
        raise self._failed(f"{self.command} did not start")


class OpenVino(_Process):
    """The driver of OpenVINO GenAI; it waits on its input, or for its group to go on."""

    def __init__(self, subject: Subject, peers: Peers, streams: int, root: Path) -> None:
        super().__init__(subject, peers, streams, root)
        try:
            self._read()
        except BaseException:
            self.stop()
            raise

    async def measure(self, load: Load, seed: str) -> Outcome:
        """Run a closed load in its process."""
        prompts = [prompt_of(f"{seed}-{at}", load.prompt_words) for at in range(load.requests)]
        asked = {
            "prompts": prompts,
            "slots": load.slots,
            "output_tokens": load.output_tokens,
            "seconds": load.max_seconds,
        }
        try:
            async with asyncio.timeout(load.max_seconds + GRACE_S):
                answer = await asyncio.to_thread(self._ask, asked)
        except TimeoutError as error:
            self.stop()  # the thread that waits for its answer ends with it
            raise ServerError(f"{self.command} does not answer") from error
        samples = [Sample(**each) for each in answer["samples"]]
        return _whole(Outcome(samples, answer["started_s"], answer["ended_s"], answer["ended_s"]))

    def _ask(self, load: dict[str, Any]) -> dict[str, Any]:
        pipe = self._process.stdin
        assert pipe is not None
        pipe.write(json.dumps(load).encode() + b"\n")
        pipe.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        pipe = self._process.stdout
        assert pipe is not None
        for line in pipe:
            if line.startswith(b"{"):
                return json.loads(line)
        raise self._failed(f"{self.command} ended")


def start(subject: Subject, peers: Peers, streams: int, model: str, root: Path) -> Server:
    """Start a subject and wait until it can be asked.

    Raises:
        ServerError: it does not start.
    """
    if subject.kind == "quarterdeck":
        return Quarterdeck(subject, model, peers.threads, root)
    if subject.kind == "openvino":
        return OpenVino(subject, peers, streams, root)
    return HttpPeer(subject, peers, streams, root)


async def _run(target: BenchTarget, model: str, load: Load, seed: str) -> Outcome:
    run = Run(target, model, load, seed, prompt_of)
    try:
        outcome = await run.measure()
    except DataPlaneError as error:
        raise ServerError(str(error)) from error
    if run.reasons:
        raise ServerError("; ".join(sorted(run.reasons)))
    return outcome if load.stagger_s else _whole(outcome)


def _whole(outcome: Outcome) -> Outcome:
    missing = sum(sample.ended_s is None for sample in outcome.samples)
    if missing or not outcome.samples:
        raise ServerError(f"{missing} of {len(outcome.samples)} requests were not answered")
    return outcome


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _shown(words: list[str], peers: Peers) -> str:
    short = [word.replace(str(peers.cache), "CACHE") for word in words]
    return " ".join(word.replace(str(Path(__file__).parent), "comparison") for word in short)


def tree_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and all below it that still live."""
    total_s = 0.0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total_s += times.user + times.system
    return total_s
