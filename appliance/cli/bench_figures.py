"""What a load run measured: the samples, the figures, and the line that shows them."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise


@dataclass(slots=True, kw_only=True)
class Sample:
    """One request. All times are readings of the same monotonic clock."""

    started_s: float
    chunks_s: list[float] = field(default_factory=list[float])
    """When each chunk with tokens came."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    ended_s: float | None = None
    """None: it has not, or not well."""
    failed: bool = False

    @property
    def tokens_per_chunk(self) -> float:
        """How many tokens a chunk stands for; 1 as long as the server has not said."""
        return self.output_tokens / len(self.chunks_s) if self.output_tokens else 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run: its requests, and the stretch of time that counts."""

    samples: Sequence[Sample]
    since_s: float
    until_s: float
    last_start_s: float
    """Requests that started later are too young to have a first token that could be late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one run measured."""

    concurrency: int
    requests: int
    """That ended well; the next two did not."""
    failed: int
    unfinished: int
    """Cut off when the time was up."""
    prompt_tokens: float
    output_tokens: float
    output_tok_s: float
    total_tok_s: float
    requests_s: float
    ttft_ms_mean: float
    ttft_ms_p50: float
    ttft_ms_p95: float
    ttft_ms_p99: float
    itl_ms_mean: float
    itl_ms_p50: float
    itl_ms_p95: float
    itl_ms_p99: float
    latency_ms_p50: float
    """From the start of a request to its last token."""
    latency_ms_p95: float
    wall_s: float
    stagger_s: float = 0.0


def figures_of(concurrency: int, outcome: Outcome, stagger_s: float = 0.0) -> Figures:
    """Sum up one run.

    Output tokens are those that came while it counts; a request that started meanwhile and got no
    token counts with the time that it has waited, so that what was never answered does not flatter.
    """
    ended = [sample for sample in outcome.samples if sample.ended_s is not None]
    counted = max(1, len(ended))
    failed = sum(sample.failed for sample in outcome.samples)
    wall_s = outcome.until_s - outcome.since_s
    tokens = _output_tokens(outcome)
    prompt_tokens = sum(sample.prompt_tokens for sample in ended) / counted
    prompts = prompt_tokens * _prompts_computed(outcome)
    ttfts_s, gaps_s = ttfts_of(outcome), gaps_of(outcome)
    took_s = [s.ended_s - s.started_s for s in ended if s.ended_s is not None]
    return Figures(
        concurrency=concurrency,
        requests=len(ended),
        failed=failed,
        unfinished=len(outcome.samples) - len(ended) - failed,
        prompt_tokens=prompt_tokens,
        output_tokens=sum(sample.output_tokens for sample in ended) / counted,
        output_tok_s=tokens / wall_s,
        total_tok_s=(prompts + tokens) / wall_s,
        requests_s=sum((s.ended_s or 0) >= outcome.since_s for s in ended) / wall_s,
        ttft_ms_mean=_mean_ms(ttfts_s),
        ttft_ms_p50=quantile_ms(ttfts_s, 0.5),
        ttft_ms_p95=quantile_ms(ttfts_s, 0.95),
        ttft_ms_p99=quantile_ms(ttfts_s, 0.99),
        itl_ms_mean=_mean_ms(gaps_s),
        itl_ms_p50=quantile_ms(gaps_s, 0.5),
        itl_ms_p95=quantile_ms(gaps_s, 0.95),
        itl_ms_p99=quantile_ms(gaps_s, 0.99),
        latency_ms_p50=quantile_ms(took_s, 0.5),
        latency_ms_p95=quantile_ms(took_s, 0.95),
        wall_s=wall_s,
        stagger_s=stagger_s,
    )


def ttfts_of(outcome: Outcome) -> list[float]:
    """Return the times to the first token of the requests that started while it counts."""
    return [
        (sample.chunks_s[0] if sample.chunks_s else outcome.until_s) - sample.started_s
        for sample in outcome.samples
        if outcome.since_s <= sample.started_s <= outcome.last_start_s and not sample.failed
    ]


def gaps_of(outcome: Outcome) -> list[float]:
    """Return the times between two chunks of one answer, of chunks that came while it counts."""
    return [
        later_s - earlier_s
        for sample in outcome.samples
        for earlier_s, later_s in pairwise(sample.chunks_s)
        if later_s >= outcome.since_s and not sample.failed
    ]


def _prompts_computed(outcome: Outcome) -> int:
    """Return how many prompts were done with while it counts, also of answers that run on."""
    return sum(
        bool(sample.chunks_s) and sample.chunks_s[0] >= outcome.since_s and not sample.failed
        for sample in outcome.samples
    )


def _output_tokens(outcome: Outcome) -> float:
    return sum(
        sample.tokens_per_chunk * sum(at_s >= outcome.since_s for at_s in sample.chunks_s)
        for sample in outcome.samples
        if not sample.failed
    )


def quantile_ms(values_s: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of all do not exceed, in milliseconds."""
    if not values_s:
        return 0.0
    rank = max(1, math.ceil(share * len(values_s)))
    return 1e3 * sorted(values_s)[rank - 1]


def _mean_ms(values_s: Sequence[float]) -> float:
    return 1e3 * sum(values_s) / len(values_s) if values_s else 0.0


_COLUMNS = {
    "concurrency": "SLOTS",
    "requests": "REQUESTS",
    "failed": "FAILED",
    "output_tok_s": "OUT TOK/S",
    "total_tok_s": "ALL TOK/S",
    "ttft_ms_p50": "TTFT P50",
    "ttft_ms_p95": "P95 MS",
    "itl_ms_p50": "ITL P50",
    "itl_ms_p99": "P99 MS",
    "wall_s": "WALL S",
}
_COLUMN_WIDTH = 10


def print_figures(figures: Figures, output: str, *, is_first: bool) -> None:
    """Print one run as a line: of a table, with its head before the first, or of JSON."""
    values = asdict(figures)
    if output == "json":
        print(json.dumps(values), flush=True)
        return
    if is_first:
        print("".join(f"{title:>{_COLUMN_WIDTH}}" for title in _COLUMNS.values()), flush=True)
    cells = (values[name] for name in _COLUMNS)
    texts = (f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in cells)
    print("".join(f"{text:>{_COLUMN_WIDTH}}" for text in texts), flush=True)
