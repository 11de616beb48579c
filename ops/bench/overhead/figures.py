"""What pairs of windows say: ratios with their confidence intervals, and verdicts."""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

RESAMPLES = 4000
TAIL = 0.025
TRIM = 0.2
"""Of the pairs, at each end, that do not count: what else the machine does comes in bursts."""
MAX_ENGINE_RATIO = 1.01
MAX_APPLIANCE_RATIO = {"default": 1.01, "sampled": 1.01}
MAX_APPLIANCE_RATIO_ALL = 1.03
MIN_RATE_RATIO = {"default": 0.985, "sampled": 0.985}
MIN_RATE_RATIO_ALL = 0.971
"""What the CPU bound leaves: 1 / 1.03."""
MAX_LAG_S = 0.020


@dataclass(frozen=True, slots=True)
class Window:
    """One stretch of time, with telemetry on or off."""

    on: bool
    seconds: float
    tokens: float
    engine_cpu_s: float
    """Of engines and gateways."""
    appliance_cpu_s: float
    """Of all processes."""

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Ratio:
    """On against off: trimmed geometric mean over pairs, and its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a bound is kept."""

    bound: str
    value: float | None
    passed: bool


@dataclass(frozen=True, slots=True)
class Result:
    """One scenario at one number of streams."""

    scenario: str
    streams: int
    pairs: int
    rate_on: float
    rate_off: float
    engine_cpu_ms_per_token: float
    """Of engines and gateways, telemetry on; in milliseconds as the next."""
    appliance_cpu_ms_per_token: float
    engine_cpu: Ratio
    appliance_cpu: Ratio
    rate: Ratio
    lag_p99_s: float | None
    spans_per_s: float
    others_cores: float
    """Cores that other processes used meanwhile: the collector, and what does not belong here."""
    records_dropped: float
    failures: list[str]
    verdicts: list[Verdict]

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def paired_ratio(on: Sequence[float], off: Sequence[float], seed: int = 0) -> Ratio:
    """Return the mean ratio of pairs, its interval by resampling pairs."""
    logs = [math.log(a / b) for a, b in zip(on, off, strict=True)]
    draw = random.Random(seed)
    means = sorted(trimmed_mean(draw.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    low, high = means[int(TAIL * RESAMPLES)], means[int((1 - TAIL) * RESAMPLES) - 1]
    return Ratio(math.exp(trimmed_mean(logs)), math.exp(low), math.exp(high))


def trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean of the values without the `TRIM` smallest and largest."""
    cut = int(TRIM * len(values))
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def verdicts_of(
    scenario: str, engine: Ratio, appliance: Ratio, rate: Ratio, lag_p99_s: float | None
) -> list[Verdict]:
    """Judge a result by the bounds, means by means (`ops/decisions/0014`)."""
    most = MAX_APPLIANCE_RATIO.get(scenario, MAX_APPLIANCE_RATIO_ALL)
    least_rate = MIN_RATE_RATIO.get(scenario, MIN_RATE_RATIO_ALL)
    is_prompt = lag_p99_s is not None and lag_p99_s <= MAX_LAG_S
    engine_bound = f"engine+gateway CPU/token <= {MAX_ENGINE_RATIO}"
    rate_bound = f"tok/s ratio >= {least_rate}"
    return [
        Verdict(engine_bound, engine.mean, engine.mean <= MAX_ENGINE_RATIO),
        Verdict(f"appliance CPU/token <= {most}", appliance.mean, appliance.mean <= most),
        Verdict(rate_bound, rate.mean, rate.mean >= least_rate),
        Verdict(f"supervisor loop lag p99 <= {MAX_LAG_S} s", lag_p99_s, is_prompt),
    ]
