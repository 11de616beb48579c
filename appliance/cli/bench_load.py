"""Loads of a server: slots that send their next request when their last one ended.

Every prompt is different, so that no cache of prefixes helps, and the length of the output is
forced. A run ends by itself: after its requests, or when its time is up.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count
from typing import Any

from appliance.cli.bench_client import BenchTarget, stream_events
from appliance.cli.bench_figures import Outcome, Sample
from appliance.cli.data_plane import DataPlaneError

_WORDS = """
anchor ballast beacon berth boom bow bridge buoy cabin cable captain cargo chart compass
crew current deck depth dock draft fathom fleet galley harbour hatch helm hold horizon
hull keel knot lantern ledger lighthouse line log mast mate mooring night oar pilot port
pump quay reef rigging rope rudder sail salt shore signal sounding spar star stern storm
tide timber voyage watch wave wharf wheel wind yard
""".split()  # noqa: SIM905  (a list takes a line a word)
_STAGGER_WINDOWS = 3
_TAIL_S = 2.0
_REST_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to send."""

    slots: int
    requests: int = 0
    """In all. Of no meaning for a staggered load, which goes by time."""
    stagger_s: float = 0.0
    """Above 0: slots start evenly over this time, send for three times as long, and the first
    third is left out of the figures."""
    prompt_words: int = 100
    output_tokens: int = 128
    max_seconds: float = 120.0

    @property
    def seconds(self) -> float:
        """When it stops, whatever happens."""
        return _STAGGER_WINDOWS * self.stagger_s or self.max_seconds


class Run:
    """One run of a load.

    Args:
        target: The server.
        model: As the server calls it.
        load: What to send.
        seed: Prompts are a function of it.
        prompt: Makes a prompt from a seed and `load.prompt_words`.
    """

    def __init__(
        self,
        target: BenchTarget,
        model: str,
        load: Load,
        seed: str,
        prompt: Callable[[str, int], str] | None = None,
    ) -> None:
        self._target = target
        self._model = model
        self._load = load
        self._seed = seed
        self._prompt = prompt or make_prompt
        self._samples: list[Sample] = []
        self.reasons: set[str] = set()
        """Why requests failed, each reason once."""

    async def measure(self) -> Outcome:
        """Keep the slots busy until all requests were sent and ended, or time is up."""
        load, started_s = self._load, time.perf_counter()
        indexes = count() if load.stagger_s else iter(range(load.requests))
        slots = load.slots if load.stagger_s else min(load.slots, load.requests)
        try:
            async with asyncio.timeout(load.seconds), asyncio.TaskGroup() as tasks:
                for slot in range(slots):
                    delay_s = slot * load.stagger_s / load.slots
                    tasks.create_task(self._slot(indexes, delay_s))
        except TimeoutError:
            if not load.stagger_s:
                self.reasons.add(f"stopped after {load.max_seconds:g} s")
        ended_s = time.perf_counter()
        since_s = started_s + load.stagger_s
        last_start_s = ended_s - _TAIL_S if load.stagger_s else ended_s
        return Outcome(self._samples, since_s, ended_s, max(since_s, last_start_s))

    async def _slot(self, indexes: Iterator[int], delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        for index in indexes:
            prompt = self._prompt(f"{self._seed}-{index}", self._load.prompt_words)
            sample = Sample(started_s=time.perf_counter())
            self._samples.append(sample)
            body = completion_body(self._model, prompt, self._load.output_tokens)
            try:
                await complete(self._target, body, sample)
            except DataPlaneError as error:
                sample.failed = True
                self.reasons.add(str(error))
                await asyncio.sleep(_REST_S if self._load.stagger_s else 0)


def make_prompt(seed: str, num_words: int) -> str:
    """Return words that depend on the seed alone; the first one is the seed itself."""
    draw = random.Random(seed)  # noqa: S311  (words, not secrets)
    return f"{seed} " + " ".join(draw.choices(_WORDS, k=num_words))


def completion_body(model: str, prompt: str, output_tokens: int) -> dict[str, Any]:
    """Return the body of a request whose answer has exactly so many tokens."""
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def complete(target: BenchTarget, body: dict[str, Any], sample: Sample) -> None:
    """Stream one completion and note in `sample` when its chunks came, then its lengths.

    Raises:
        DataPlaneError: refused, broken off, or without text.
    """
    usage: dict[str, int] = {}
    first_s: float | None = None
    async with aclosing(stream_events(target, "/v1/completions", body)) as events:
        async for event in events:
            choices = event.get("choices", ())
            if choices and first_s is None:
                first_s = time.perf_counter()
            if any(choice.get("text") or not choice.get("finish_reason") for choice in choices):
                sample.chunks_s.append(time.perf_counter())
            usage = event.get("usage") or usage
    if not sample.chunks_s and first_s is not None and usage.get("completion_tokens"):
        sample.chunks_s.append(first_s)  # a single token may be part of a character
    if not sample.chunks_s:
        raise DataPlaneError("an answer had no text")
    sample.prompt_tokens = usage.get("prompt_tokens", 0)
    sample.output_tokens = usage.get("completion_tokens", len(sample.chunks_s))
    sample.ended_s = time.perf_counter()
