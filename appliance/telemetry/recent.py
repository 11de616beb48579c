"""What the last minute was like: the figures of a `Stats` frame, and examples for histograms."""

from appliance.telemetry.prometheus_examples import ExampleBook
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
STALE_NS = 100_000
"""So much older may a median be for each value: it costs a thousandth of that."""


class Recent:
    """Windows over ended requests and token counts."""

    def __init__(self, clock: WallClock, since_ns: int) -> None:
        self._since_ns = since_ns
        self.ttft_ms = Window(WINDOW_NS)
        self.tpot_ms = Window(WINDOW_NS)
        self.queue_ms = Window(WINDOW_NS)
        self.e2e_ms = Window(WINDOW_NS)
        self._median: tuple[int, float | None] = (0, None)
        self._failures = Window(WINDOW_NS)
        self.prompt_tokens = Rate(RATE_NS)
        self.generation_tokens = Rate(RATE_NS)
        self.examples = ExampleBook(clock)

    def record(self, record: RequestRecord) -> None:
        """Take an ended request."""
        at_ns = record.ended_ns
        self._failures.add(at_ns, float(record.outcome is Outcome.FAILED))
        self.examples.record(record)
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

    def median_ttft_ms(self, now_ns: int) -> float | None:
        """Return the median time to the first token, None when few requests were seen.

        Every request asks, and many are many to sort: the more, the longer an answer is good.
        """
        at_ns, median_ms = self._median
        if median_ms is None or now_ns - at_ns > len(self.ttft_ms) * STALE_NS:
            median_ms = self.ttft_ms.median(now_ns, MIN_FOR_MEDIAN)
            self._median = now_ns, median_ms
        return median_ms

    def requests_per_s(self, now_ns: int) -> float:
        """Return how many requests ended per second, rejected ones included."""
        running_ns = max(NS_PER_S, now_ns - self._since_ns)
        span_s = max(1, min(self._failures.reach_ns(now_ns), running_ns)) / NS_PER_S
        return round(len(self._failures.values(now_ns)) / span_s, 3)

    def error_ratio(self, now_ns: int) -> float:
        """Return the share of ended requests that failed."""
        failures = self._failures.values(now_ns)
        return round(sum(failures) / len(failures), 4) if failures else 0.0
