"""What a load run measured: the samples, the figures, and the line that shows them."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One request that ended well."""

    ttft_s: float
    gaps_s: tuple[float, ...]
    """Between the chunks that followed the first."""
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one run measured."""

    concurrency: int
    requests: int
    failed: int
    unfinished: int
    """Cut off when the time was up."""
    prompt_tokens: float
    output_tokens: float
    output_tok_s: float
    total_tok_s: float
    ttft_ms_p50: float
    ttft_ms_p95: float
    itl_ms_p50: float
    itl_ms_p99: float
    wall_s: float


def figures_of(
    concurrency: int, samples: Sequence[Sample], counts: tuple[int, int], wall_s: float
) -> Figures:
    """Sum up one run. `counts`: failed and unfinished requests."""
    gaps_s = [gap_s for sample in samples for gap_s in sample.gaps_s]
    ttfts_s = [sample.ttft_s for sample in samples]
    prompt_tokens = sum(sample.prompt_tokens for sample in samples)
    output_tokens = sum(sample.output_tokens for sample in samples)
    num_samples = max(1, len(samples))
    return Figures(
        concurrency=concurrency,
        requests=len(samples),
        failed=counts[0],
        unfinished=counts[1],
        prompt_tokens=prompt_tokens / num_samples,
        output_tokens=output_tokens / num_samples,
        output_tok_s=output_tokens / wall_s,
        total_tok_s=(prompt_tokens + output_tokens) / wall_s,
        ttft_ms_p50=quantile_ms(ttfts_s, 0.5),
        ttft_ms_p95=quantile_ms(ttfts_s, 0.95),
        itl_ms_p50=quantile_ms(gaps_s, 0.5),
        itl_ms_p99=quantile_ms(gaps_s, 0.99),
        wall_s=wall_s,
    )


def quantile_ms(values_s: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of all do not exceed, in milliseconds."""
    if not values_s:
        return 0.0
    rank = max(1, math.ceil(share * len(values_s)))
    return 1e3 * sorted(values_s)[rank - 1]


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
