"""Traffic for stages: words, streams in threads, a chat by hand, processes that stand still."""

import random
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import httpx
import psutil

from tests.integration.appliance_process import ApplianceProcess

WORDS = (
    "the", "capital", "of", "France", "is", "Paris", "and", "quick", "brown", "fox", "jumps",
    "over", "lazy", "dog", "engine", "makes", "tokens", "gateway", "text", "supervisor",
    "watches", "both", "day", "night",
)  # fmt: skip


def words(count: int, seed: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(count))


def begin_chat(
    appliance: ApplianceProcess, body: bytes, length: int | None = None
) -> socket.socket:
    """Begin a chat by hand; the connection is closed by the server at the end."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, 1024)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", appliance.instance["port"]))
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Authorization: Bearer {appliance.api_key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length or len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)
    return connection


class Filler(threading.Thread):
    """A stream that is read to its end, whatever that is."""

    def __init__(self, appliance: ApplianceProcess, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._appliance = appliance
        self._body = body
        self.started = threading.Event()
        """The first token is here."""

    def run(self) -> None:
        url, headers = f"{self._appliance.url}/v1/completions", self._appliance.headers
        with (
            httpx.Client(timeout=60) as client,
            client.stream("POST", url, json=self._body, headers=headers) as answer,
        ):
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    self.started.set()


def pause(pid: int, pause_s: float) -> threading.Thread:
    """Stop a process now, and let it go on after a while; return the thread that will."""
    process = psutil.Process(pid)
    process.suspend()
    timer = threading.Timer(pause_s, process.resume)
    timer.start()
    return timer


class QueueWatch:
    """Looks whether requests wait in the engine, all the time; the appliance itself says so."""

    def __init__(self, appliance: ApplianceProcess) -> None:
        self._appliance = appliance
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.seconds = 0.0
        """In which somebody waited."""

    def __enter__(self) -> "QueueWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        before_s = time.monotonic()
        while not self._done.wait(0.03):
            waiting = self._appliance.engine()["waiting"]
            now_s = time.monotonic()
            self.seconds += (now_s - before_s) if waiting else 0.0
            before_s = now_s


def join(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a request did not end"


class OtherLoad(threading.Thread):
    """Watches how much of the machine's CPU goes to processes that are neither ours nor the test.

    It slows an engine's steps down, which is a cause that no stage has made.
    """

    def __init__(self, appliance: ApplianceProcess) -> None:
        super().__init__(daemon=True)
        self._appliance = appliance
        self._seen: list[tuple[float, float]] = []
        """(time, CPU seconds of others until then)."""
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.1):
            self._seen.append((time.monotonic(), busy_s() - self._own_s()))

    def share(self, took_s: float) -> float:
        """Of the CPUs, in the time just past."""
        since_s = time.monotonic() - took_s - 0.2
        inside = [one for one in self._seen if one[0] >= since_s]
        if len(inside) < 2:
            return 0.0
        (start_s, before_s), (end_s, after_s) = inside[0], inside[-1]
        return (after_s - before_s) / ((end_s - start_s) * (psutil.cpu_count() or 1))

    def _own_s(self) -> float:
        own = 0.0
        for process in (psutil.Process(), *self._family()):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            own += times.user + times.system
        return own

    def _family(self) -> list[psutil.Process]:
        assert self._appliance.process is not None
        try:
            return [psutil.Process(self._appliance.process.pid), *self._appliance.children()]
        except psutil.NoSuchProcess:
            return []


def busy_s() -> float:
    """CPU seconds that the machine has spent on anything."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system
