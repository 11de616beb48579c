"""A real `quarterdeck serve` in its own process and directories, for tests."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil

QUARTERDECK = [str(Path(sys.executable).parent / "quarterdeck")]


def wait_until(claim: Callable[[], Any], timeout_s: float = 30.0, what: str = "") -> Any:
    """Return the first truthy result of `claim`, asked again and again."""
    deadline = time.monotonic() + timeout_s
    while True:
        result = claim()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what or claim}")
        time.sleep(0.02)


class ApplianceProcess:
    """Starts `quarterdeck serve`; ports are chosen by the system.

    Args:
        root: Directory for its state.
        model: What to serve.
        args: More flags.
    """

    def __init__(
        self, root: Path, model: str, *args: str, env: dict[str, str] | None = None
    ) -> None:
        self.state_dir = root / "state"
        self.api_key = "qd_test_inference_0123456789abcdef"
        self.admin_key = "qd_test_admin_0123456789abcdef"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("QUARTERDECK_")}
        for kept in ("QUARTERDECK_MODEL_DIR", "QUARTERDECK_WEIGHT_CACHE"):
            if kept in os.environ:
                self.env[kept] = os.environ[kept]
        self.env |= {"QUARTERDECK_STATE_DIR": str(self.state_dir), "PYTHONUNBUFFERED": "1"}
        self.env |= env or {}
        self.command = [
            *QUARTERDECK, "serve", model, "--port", "0", "--admin-port", "0",
            "--api-key", self.api_key, "--admin-key", self.admin_key, *args,
        ]  # fmt: skip
        self.output: list[str] = []
        self.process: subprocess.Popen[str] | None = None
        self.instance: dict[str, Any] = {}
        self.http = httpx.Client(timeout=70, verify=False)  # noqa: S501 - loads no certificates
        self._sdk: openai.OpenAI | None = None

    def start(self, *, ready: bool = True, timeout_s: float = 60.0) -> "ApplianceProcess":
        """Start it and wait until it serves, with all of its engines."""
        self.output = []
        self.process = subprocess.Popen(
            self.command,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()
        self.instance = wait_until(self._read_instance, 20, "instance.json")
        if ready:
            self.wait_ready(timeout_s)
            wait_until(self._has_started, timeout_s, "all engines have started")
        return self

    def _has_started(self) -> bool:
        engines = self.admin("/admin/v1/engines").json()["items"]
        return all(engine["state"] != "starting" for engine in engines)

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.output.append(line.rstrip("\n"))

    def _read_instance(self) -> dict[str, Any] | None:
        assert self.process is not None
        assert self.process.poll() is None, "\n".join(self.output)
        try:
            instance = json.loads((self.state_dir / "instance.json").read_text())
        except (OSError, ValueError):
            return None
        return instance if instance["pid"] == self.process.pid else None

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until both planes say that they are ready."""

        def ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, "\n".join(self.output)
            try:
                return self.http.get(f"{self.url}/readyz").status_code == 200
            except httpx.TransportError:
                return False

        wait_until(ready, timeout_s, f"ready: {self.output[-20:]}")

    @property
    def url(self) -> str:
        """Base URL of the data plane."""
        return f"http://127.0.0.1:{self.instance['port']}"

    @property
    def admin_url(self) -> str:
        """Base URL of the control plane."""
        return f"http://127.0.0.1:{self.instance['admin_port']}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"}

    @property
    def admin_headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.admin_key}"}

    @property
    def sdk(self) -> openai.OpenAI:
        """OpenAI's client with the inference key, closed with the appliance."""
        if self._sdk is None:
            self._sdk = openai.OpenAI(
                base_url=f"{self.url}/v1", api_key=self.api_key, max_retries=0
            )
        return self._sdk

    def post(self, path: str, body: dict[str, Any], timeout_s: float = 60.0) -> httpx.Response:
        """POST to the data plane."""
        url = f"{self.url}{path}"
        return self.http.post(url, json=body, headers=self.headers, timeout=timeout_s)

    def chat(self, text: str, **fields: Any) -> httpx.Response:
        """One chat request without streaming."""
        body = {"model": self.model, "messages": [{"role": "user", "content": text}], **fields}
        return self.post("/v1/chat/completions", {"temperature": 0, "max_tokens": 16} | body)

    @property
    def model(self) -> str:
        """The first served model."""
        answer = self.http.get(f"{self.url}/v1/models", headers=self.headers).json()
        return answer["data"][0]["id"]

    def admin(self, path: str, method: str = "GET", **options: Any) -> httpx.Response:
        """Ask the control plane with the admin key."""
        url = f"{self.admin_url}{path}"
        return self.http.request(method, url, headers=self.admin_headers, **options)

    def engine(self, engine_id: str = "e0") -> dict[str, Any]:
        """One engine's row."""
        return self.admin(f"/admin/v1/engines/{engine_id}").json()

    def metrics(self) -> str:
        """The Prometheus text."""
        return self.admin("/metrics").text

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples that have these labels."""
        total = 0.0
        for line in self.metrics().splitlines():
            if line.startswith("#"):
                continue
            sample, _, value = line.rpartition(" ")
            if sample.split("{")[0] == name and all(
                f'{k}="{v}"' in sample for k, v in labels.items()
            ):
                total += float(value)
        return total

    def cli(self, *args: str, timeout_s: float = 60.0) -> "subprocess.CompletedProcess[str]":
        """Run a `quarterdeck` command against this instance."""
        return subprocess.run(
            [*QUARTERDECK, *args],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def children(self) -> list[psutil.Process]:
        """All processes below the supervisor."""
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self, timeout_s: float = 45.0) -> int:
        """Ask it to end; return the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            for child in self.children():
                child.kill()
            self.process.kill()
            self.process.wait()
            raise
        self._reader.join(5)
        self.http.close()
        if self._sdk is not None:
            self._sdk.close()
        return code
