"""`quarterdeck bench`: a closed-loop load on /v1/completions, and what it measured.

Each of N slots sends its next request when its last one ended. Every prompt is different, so that
no cache of prefixes helps, and the length of the output is forced. A run ends by itself: after its
requests, or when its time is up.
"""

import asyncio
import random
import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from appliance.cli.bench_figures import Figures, Sample, figures_of, print_figures
from appliance.cli.data_plane import (
    DONE,
    SOCKET_URL,
    TIMED_OUT,
    DataPlaneError,
    check_status,
    connection_error,
    event_of,
    printable,
    served_model,
)

_OK, _FAILED = 0, 1
_CONNECT_S = 10.0
_WORDS = """
anchor ballast beacon berth boom bow bridge buoy cabin cable captain cargo chart compass
crew current deck depth dock draft fathom fleet galley harbour hatch helm hold horizon
hull keel knot lantern ledger lighthouse line log mast mate mooring night oar pilot port
pump quay reef rigging rope rudder sail salt shore signal sounding spar star stern storm
tide timber voyage watch wave wharf wheel wind yard
""".split()  # noqa: SIM905  (a list takes a line a word)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTarget:
    """The server: the appliance's own unix socket, or any OpenAI-compatible URL."""

    socket_path: Path | None = None
    url: str | None = None
    api_key: str | None = field(default=None, repr=False)

    def client(self) -> httpx.AsyncClient:
        """Return a client that opens a connection for each request, as separate users would."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        uds = str(self.socket_path) if self.url is None else None
        return httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=uds, limits=limits),
            base_url=self.url or SOCKET_URL,
            headers={"Authorization": f"Bearer {self.api_key}"} if self.api_key else {},
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
            trust_env=False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """What to send. `max_seconds` bounds the warm-up, and each concurrency's run."""

    model: str | None = None
    """None takes the first served model."""
    concurrency: tuple[int, ...] = (1, 8, 32)
    requests_per_slot: int = 2
    min_requests: int = 3
    prompt_words: int = 100
    output_tokens: int = 128
    max_seconds: float = 120.0
    seed: str | None = None
    """Prompts are a function of it; None draws one, so that two runs share no prompt."""


def run_bench(target: BenchTarget, plan: BenchPlan, output: str = "table") -> int:
    """Measure each concurrency in turn and print a line for each; `output`: `table` or `json`.

    Returns the exit code: 0, 1 when any request failed or none ended, 3 no connection, 4 timed out.
    """
    try:
        return asyncio.run(_run_all(target, plan, output))
    except DataPlaneError as error:
        print(f"quarterdeck: {printable(str(error))}", file=sys.stderr)
        return error.exit_code


async def _run_all(target: BenchTarget, plan: BenchPlan, output: str) -> int:
    is_clean = True
    async with target.client() as client:
        model = await _warm_up(client, plan)
        seed = plan.seed or secrets.token_hex(4)
        for index, concurrency in enumerate(plan.concurrency):
            run = Run(client, model, plan, f"{seed}-{index}")
            figures = await run.measure(concurrency)
            print_figures(figures, output, is_first=index == 0)
            for reason in sorted(run.reasons):
                print(f"quarterdeck: {printable(reason)}", file=sys.stderr)
            is_clean = is_clean and figures.failed == 0 and figures.requests > 0
    return _OK if is_clean else _FAILED


async def _warm_up(client: httpx.AsyncClient, plan: BenchPlan) -> str:
    """Send one request that is not measured; return the model's name."""
    try:
        async with asyncio.timeout(plan.max_seconds):
            model = plan.model or await _first_model(client)
            await _complete(client, _body(model, "warm up", plan.output_tokens))
    except TimeoutError as error:
        raise DataPlaneError("the first request took too long", TIMED_OUT) from error
    return model


class Run:
    """One concurrency's load."""

    def __init__(self, client: httpx.AsyncClient, model: str, plan: BenchPlan, seed: str) -> None:
        self._client = client
        self._model = model
        self._plan = plan
        self._seed = seed
        self._samples: list[Sample] = []
        self._failed = 0
        self._started = 0
        self.reasons: set[str] = set()
        """Why requests failed, each reason once."""

    async def measure(self, concurrency: int) -> Figures:
        """Keep `concurrency` requests in flight until all were sent and ended, or time is up."""
        total = max(self._plan.min_requests, concurrency * self._plan.requests_per_slot)
        indexes = iter(range(total))
        started_s = time.perf_counter()
        try:
            async with asyncio.timeout(self._plan.max_seconds), asyncio.TaskGroup() as slots:
                for _ in range(min(concurrency, total)):
                    slots.create_task(self._slot(indexes))
        except TimeoutError:
            self.reasons.add(f"stopped after {self._plan.max_seconds:g} s")
        unfinished = self._started - len(self._samples) - self._failed
        counts = (self._failed, unfinished)
        return figures_of(concurrency, self._samples, counts, time.perf_counter() - started_s)

    async def _slot(self, indexes: Iterator[int]) -> None:
        for index in indexes:
            self._started += 1
            prompt = make_prompt(f"{self._seed}-{index}", self._plan.prompt_words)
            try:
                sample = await _complete(
                    self._client, _body(self._model, prompt, self._plan.output_tokens)
                )
            except DataPlaneError as error:
                self._failed += 1
                self.reasons.add(str(error))
            else:
                self._samples.append(sample)


def make_prompt(seed: str, num_words: int) -> str:
    """Return words that depend on the seed alone; the first one is the seed itself."""
    draw = random.Random(seed)  # noqa: S311  (words, not secrets)
    return f"{seed} " + " ".join(draw.choices(_WORDS, k=num_words))


def _body(model: str, prompt: str, output_tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def _first_model(client: httpx.AsyncClient) -> str:
    try:
        return served_model(await client.get("/v1/models")).name
    except httpx.HTTPError as error:
        raise connection_error(error) from error


async def _complete(client: httpx.AsyncClient, body: dict[str, Any]) -> Sample:
    """Stream one completion and time its chunks.

    Raises:
        DataPlaneError: refused, broken off, or without usage.
    """
    chunks_s: list[float] = []
    usage: dict[str, int] | None = None
    started_s = time.perf_counter()
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if not response.is_success:
                await response.aread()
            check_status(response)
            async for line in response.aiter_lines():
                event = event_of(line)
                if event is DONE:
                    break
                if event is not None:
                    usage = _take(event, chunks_s) or usage
            else:
                raise DataPlaneError("an answer broke off")
    except httpx.HTTPError as error:
        raise connection_error(error) from error
    if not chunks_s:
        raise DataPlaneError("an answer had no text")
    return _sample(started_s, chunks_s, usage)


def _take(event: dict[str, Any], chunks_s: list[float]) -> dict[str, int] | None:
    """Note the time of a chunk with tokens; return the usage if this event has it."""
    choices = event.get("choices", ())
    if any(choice.get("text") or not choice.get("finish_reason") for choice in choices):
        chunks_s.append(time.perf_counter())
    return event.get("usage")


def _sample(started_s: float, chunks_s: list[float], usage: dict[str, int] | None) -> Sample:
    counts = usage or {}
    return Sample(
        ttft_s=chunks_s[0] - started_s,
        gaps_s=tuple(later - earlier for earlier, later in pairwise(chunks_s)),
        prompt_tokens=counts.get("prompt_tokens", 0),
        output_tokens=counts.get("completion_tokens", len(chunks_s)),
    )
