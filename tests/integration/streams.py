"""Reading SSE streams in tests, many at once."""

import json
import threading
from collections.abc import Sequence
from typing import Any

import httpx

from tests.integration.appliance_process import ApplianceProcess


class Stream(threading.Thread):
    """One streaming chat request, read to its end in a thread."""

    def __init__(self, appliance: ApplianceProcess, model: str, text: str, **fields: Any) -> None:
        super().__init__(daemon=True)
        self._appliance = appliance
        self._body = {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "stream": True,
            "temperature": 0,
            "max_tokens": 64,
            **fields,
        }
        self.frames: list[dict[str, Any]] = []
        self.comments = 0
        self.done = False
        self.is_broken = False
        """The connection ended in the middle of the body."""
        self.status: int | None = None
        self.request_id: str | None = None
        self.body = ""
        self.started = threading.Event()
        """Set at the first frame that carries text."""

    def run(self) -> None:
        url = f"{self._appliance.url}/v1/chat/completions"
        headers = self._appliance.headers
        with (
            httpx.Client(timeout=120, verify=False) as client,  # noqa: S501
            client.stream("POST", url, json=self._body, headers=headers) as response,
        ):
            self.status = response.status_code
            self.request_id = response.headers.get("x-request-id")
            if self.status != 200:
                self.body = response.read().decode()
                return
            try:
                for line in response.iter_lines():
                    self._line(line)
            except httpx.RemoteProtocolError:
                self.is_broken = True

    def _line(self, line: str) -> None:
        if line.startswith(":"):
            self.comments += 1
        elif line == "data: [DONE]":
            self.done = True
        elif line.startswith("data: "):
            self.frames.append(json.loads(line.removeprefix("data: ")))
            if self.text:
                self.started.set()

    @property
    def text(self) -> str:
        return "".join(
            choice["delta"].get("content") or ""
            for frame in self.frames
            for choice in frame.get("choices", [])
        )

    @property
    def error(self) -> dict[str, Any] | None:
        return next((frame["error"] for frame in self.frames if "error" in frame), None)

    @property
    def finish_reason(self) -> str | None:
        reasons = [c["finish_reason"] for f in self.frames for c in f.get("choices", [])]
        return next((reason for reason in reasons if reason), None)


def run_all(streams: Sequence[Stream], timeout_s: float = 90.0) -> None:
    """Start all and wait for all."""
    for stream in streams:
        stream.start()
    for stream in streams:
        stream.join(timeout_s)
        assert not stream.is_alive(), "the stream did not end"
