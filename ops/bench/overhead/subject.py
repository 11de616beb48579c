"""The appliance that is measured: started, switched, read, stopped."""

import contextlib
import json
import os
import resource
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx
import psutil

START_S = 180.0
STOP_S = 45.0
POLL_S = 0.05
NS_PER_S = 1e9
FULL_BYTES = 256 << 10
"""Logs and the audit are smaller, the trace store is not."""
Role = Literal["engine", "gateway", "supervisor"]
ROLES: dict[str, Role] = {"engine": "engine", "appliance.gateway": "gateway"}


class SubjectError(Exception):
    """The appliance did not do what the measurement needs."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative buckets of a Prometheus histogram: upper edge to count."""

    buckets: dict[float, float]

    def since(self, before: "Histogram") -> "Histogram":
        """Return what was added."""
        return Histogram({k: v - before.buckets.get(k, 0) for k, v in self.buckets.items()})

    def plus(self, other: "Histogram") -> "Histogram":
        """Return both."""
        edges = self.buckets.keys() | other.buckets.keys()
        return Histogram({k: self.buckets.get(k, 0) + other.buckets.get(k, 0) for k in edges})

    def quantile(self, share: float) -> float | None:
        """Return the value below which that share lies, as Prometheus interpolates it."""
        edges = sorted(self.buckets)
        if not edges or not self.buckets[edges[-1]]:
            return None
        rank, low, below = share * self.buckets[edges[-1]], 0.0, 0.0
        for edge in edges:
            count = self.buckets[edge]
            if count >= rank:
                if edge == float("inf"):
                    return low
                return low + (edge - low) * (rank - below) / max(count - below, 1e-12)
            low, below = edge, count
        return None


class Subject:
    """A real `quarterdeck serve` on ports that the system chooses.

    Args:
        root: A short directory for its state.
        model: What to serve.
        flags: More flags.
    """

    def __init__(self, root: Path, model: str, flags: list[str]) -> None:
        self.api_key, admin_key = (secrets.token_hex(16) for _ in range(2))
        env = {k: v for k, v in os.environ.items() if not k.startswith("QUARTERDECK_")}
        if "QUARTERDECK_MODEL_DIR" in os.environ:
            env["QUARTERDECK_MODEL_DIR"] = os.environ["QUARTERDECK_MODEL_DIR"]
        env |= {
            "QUARTERDECK_STATE_DIR": str(root / "state"),
            "QUARTERDECK_API_KEY": self.api_key,
            "QUARTERDECK_ADMIN_KEY": admin_key,
        }
        self._state = root / "state"
        self._log = root / "serve.log"
        program = str(Path(sys.executable).parent / "quarterdeck")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [program, "serve", model, "--port", "0", "--admin-port", "0", *flags],
                env=env,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        headers = {"authorization": f"Bearer {admin_key}"}
        self._http = httpx.Client(timeout=30, headers=headers, trust_env=False)
        self.port = 0
        self._admin = ""
        self.model = ""

    def wait_ready(self) -> None:
        """Wait until it serves.

        Raises:
            SubjectError: it ended, or takes too long.
        """
        instance = self._wait(self._instance)
        self.port = instance["port"]
        self._admin = f"http://127.0.0.1:{instance['admin_port']}"
        self._wait(self._is_ready)
        answer = self._http.get(
            f"http://127.0.0.1:{self.port}/v1/models",
            headers={"authorization": f"Bearer {self.api_key}"},
        )
        self.model = answer.json()["data"][0]["id"]

    @property
    def pid(self) -> int:
        """Of its supervisor, which leads its process group."""
        return self._process.pid

    def engines(self) -> list[dict]:
        """Return what the control plane says about the engines."""
        return self._http.get(f"{self._admin}/admin/v1/engines").json()["items"]

    def set_recording(self, *, on: bool) -> None:
        """Switch the telemetry while it runs."""
        answer = self._http.patch(f"{self._admin}/admin/v1/telemetry", json={"recording": on})
        if not answer.is_success or answer.json()["recording"] is not on:
            raise SubjectError(f"the telemetry cannot be switched: {answer.text[:300]}")

    def fill_disk(self) -> None:
        """From now on the supervisor cannot make a file grow: its trace store is on a full disk."""
        _, hard = resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (FULL_BYTES, hard))

    def scrape(self) -> str:
        """Return the Prometheus text."""
        return self._http.get(f"{self._admin}/metrics").text

    def cpu_s(self) -> dict[Role, dict[int, float]]:
        """Return CPU seconds of every thread by role; differences of two readings count."""
        threads: dict[Role, dict[int, float]] = {"engine": {}, "gateway": {}, "supervisor": {}}
        for pid, role in self.processes():
            for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                try:
                    threads[role][int(task.parent.name)] = (
                        int(task.read_text().split()[0]) / NS_PER_S
                    )
                except (OSError, ValueError, IndexError):
                    continue  # the thread has just ended
        return threads

    def processes(self) -> list[tuple[int, Role]]:
        """Return the process ids of all that live, each with its role."""
        found: list[tuple[int, Role]] = [(self._process.pid, "supervisor")]
        for child in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words = child.cmdline()
                role = next((ROLES[word] for word in words if word in ROLES), "supervisor")
                found.append((child.pid, role))
        return found

    def stop(self) -> None:
        """End it, with force if need be."""
        self._http.close()
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _wait(self, claim):  # noqa: ANN001, ANN202 - any truthy result
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                break
            result = claim()
            if result:
                return result
            time.sleep(POLL_S)
        tail = self._log.read_text(errors="replace")[-2000:]
        raise SubjectError(f"the appliance did not start:\n{tail}")

    def _instance(self) -> dict | None:
        try:
            instance = json.loads((self._state / "instance.json").read_text())
        except (OSError, ValueError):
            return None
        return instance if instance["pid"] == self._process.pid else None

    def _is_ready(self) -> bool:
        try:
            return (
                self._http.get(f"http://127.0.0.1:{self.port}/readyz").status_code == httpx.codes.OK
            )
        except httpx.TransportError:
            return False


def histogram_of(text: str, name: str, **labels: str) -> Histogram:
    """Read a histogram from Prometheus text."""
    buckets: dict[float, float] = {}
    for line in _samples(text, f"{name}_bucket", labels):
        edge = line.split('le="')[1].split('"')[0]
        buckets[float(edge)] = buckets.get(float(edge), 0) + _value(line)
    return Histogram(buckets)


def total_of(text: str, name: str, **labels: str) -> float:
    """Return the sum of a metric's samples."""
    return sum(_value(line) for line in _samples(text, name, labels))


def _samples(text: str, name: str, labels: dict[str, str]) -> list[str]:
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return [
        line
        for line in text.splitlines()
        if line.startswith((f"{name}{{", f"{name} ")) and all(each in line for each in wanted)
    ]


def _value(line: str) -> float:
    return float(line.split(" # ")[0].rpartition(" ")[2])
