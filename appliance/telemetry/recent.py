"""What the last minute was like: the figures of a `Stats` frame, and examples for histograms."""

from bisect import bisect_left
from collections.abc import Iterator

from appliance.telemetry import names
from appliance.telemetry.ledger import Labels
from appliance.telemetry.names import Metric
from appliance.telemetry.prometheus_examples import Examples, TraceExample
from appliance.telemetry.records import Outcome, RequestRecord
from appliance.telemetry.request_facts import (
    NS_PER_MS,
    NS_PER_S,
    duration_ns,
    queue_ns,
    tpot_ns,
    ttft_ns,
)
from appliance.telemetry.wall_clock import WallClock
from appliance.telemetry.windows import Rate, Window

WINDOW_NS = 60_000_000_000
RATE_NS = 10_000_000_000
"""Token rates look back less far: an operator watches them move."""
MIN_FOR_MEDIAN = 5
OTHER = "other"


class Recent:
    """Windows over ended requests and token counts."""

    def __init__(self, clock: WallClock, since_ns: int) -> None:
        self._clock = clock
        self._since_ns = since_ns
        self.ttft_ms = Window(WINDOW_NS)
        self.tpot_ms = Window(WINDOW_NS)
        self.queue_ms = Window(WINDOW_NS)
        self.e2e_ms = Window(WINDOW_NS)
        self._failures = Window(WINDOW_NS)
        self.prompt_tokens = Rate(RATE_NS)
        self.generation_tokens = Rate(RATE_NS)
        self.examples: Examples = {}

    def record(self, record: RequestRecord) -> None:
        """Take an ended request."""
        at_ns = record.ended_ns
        self._failures.add(at_ns, float(record.outcome is Outcome.FAILED))
        if record.outcome is Outcome.REJECTED:
            return
        for window, value_ns in (
            (self.ttft_ms, ttft_ns(record)),
            (self.tpot_ms, tpot_ns(record)),
            (self.queue_ms, queue_ns(record)),
            (self.e2e_ms, duration_ns(record)),
        ):
            if value_ns is not None:
                window.add(at_ns, value_ns / NS_PER_MS)
        self._keep_examples(record)

    def median_ttft_ms(self, now_ns: int) -> float | None:
        """Return the median time to the first token, None when few requests were seen."""
        return self.ttft_ms.median(now_ns, MIN_FOR_MEDIAN)

    def requests_per_s(self, now_ns: int) -> float:
        """Return how many requests ended per second, rejected ones included."""
        span_s = min(WINDOW_NS, max(1, now_ns - self._since_ns)) / NS_PER_S
        return round(len(self._failures.values(now_ns)) / max(1.0, span_s), 3)

    def error_ratio(self, now_ns: int) -> float:
        """Return the share of ended requests that failed."""
        failures = self._failures.values(now_ns)
        return round(sum(failures) / len(failures), 4) if failures else 0.0

    def _keep_examples(self, record: RequestRecord) -> None:
        """Remember the trace as the example of each histogram bucket that it fell in."""
        at_s = self._clock.unix_ns(record.ended_ns) / NS_PER_S
        for metric, labels, value_s in _observations(record):
            bucket = bisect_left(metric.buckets, value_s)
            self.examples[metric.name, labels, bucket] = TraceExample(
                record.trace_id, value_s, at_s
            )


def _observations(record: RequestRecord) -> Iterator[tuple[Metric, Labels, float]]:
    model = record.base_model or record.model or OTHER
    yield names.E2E, (model, record.outcome.value), duration_ns(record) / NS_PER_S
    for metric, value_ns in (
        (names.TTFT, ttft_ns(record)),
        (names.TPOT, tpot_ns(record)),
        (names.QUEUE, queue_ns(record)),
    ):
        if value_ns is not None:
            yield metric, (model,), value_ns / NS_PER_S
