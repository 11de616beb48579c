"""A closed load of streams: each asks again when its answer has ended, until it is told to end."""

import asyncio
import json
import time
from dataclasses import dataclass, field

from appliance.cli.bench_load import make_prompt

CONNECT_S = 10.0
LINE_LIMIT = 1 << 20


@dataclass(slots=True)
class Answer:
    """When chunks of one answer came, and how many tokens it had in all."""

    chunks_s: list[float] = field(default_factory=list)
    tokens: int | None = None
    """None: it has not ended."""

    def tokens_within(self, since_s: float, until_s: float) -> float:
        """Return the tokens that came in that time; a chunk may hold more than one."""
        if not self.chunks_s:
            return 0.0
        per_chunk = 1.0 if self.tokens is None else self.tokens / len(self.chunks_s)
        return per_chunk * sum(since_s <= at_s < until_s for at_s in self.chunks_s)


class Load:
    """The streams. Prompts differ, so no cache of prefixes helps.

    Args:
        port: Of the data plane.
        api_key: Of scope inference.
        model: Name that is served.
        output_tokens: Of each answer.
    """

    def __init__(self, port: int, api_key: str, model: str, output_tokens: int) -> None:
        self._port = port
        self._api_key = api_key
        self._model = model
        self._output_tokens = output_tokens
        self._answers: list[Answer] = []
        self.failures: list[str] = []

    def tokens_within(self, since_s: float, until_s: float) -> float:
        """Return the tokens that all streams got between two readings of `time.monotonic()`."""
        return sum(answer.tokens_within(since_s, until_s) for answer in self._answers)

    async def stream(self, name: str, stop: asyncio.Event) -> None:
        """Ask until `stop` is set; a failure is noted, and followed by a short rest."""
        index = 0
        while not stop.is_set():
            index += 1
            answer = Answer()
            self._answers.append(answer)
            try:
                await self._ask(f"{name}-{index}", answer)
            except (OSError, ValueError, asyncio.IncompleteReadError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.5)

    async def _ask(self, seed: str, answer: Answer) -> None:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self._port, limit=LINE_LIMIT
            )
        try:
            writer.write(self._request(seed))
            status = (await reader.readline()).split(b" ")
            if status[1:2] != [b"200"]:
                raise ValueError(f"it answered {b' '.join(status).decode(errors='replace')!r}")
            async for line in reader:
                if line.startswith(b"data: {"):
                    self._take(line, answer)
            if answer.tokens is None:
                raise ValueError("an answer broke off")
        finally:
            writer.close()

    def _take(self, line: bytes, answer: Answer) -> None:
        if b'"completion_tokens"' in line:
            event = json.loads(line.removeprefix(b"data: "))
            answer.tokens = event["usage"]["completion_tokens"]
        elif b'"error"' in line:
            raise ValueError("an answer ended with an error")
        else:
            answer.chunks_s.append(time.monotonic())

    def _request(self, seed: str) -> bytes:
        body = json.dumps(
            {
                "model": self._model,
                "prompt": make_prompt(seed, 12),
                "max_tokens": self._output_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
            f"authorization: Bearer {self._api_key}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body
