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


class Recent:
    """Windows over ended requests and token counts."""

    def __init__(self, clock: WallClock, since_ns: int) -> None:
        self._since_ns = since_ns
        self.ttft_ms = Window(WINDOW_NS)
        self.tpot_ms = Window(WINDOW_NS)
        self.queue_ms = Window(WINDOW_NS)
        self.e2e_ms = Window(WINDOW_NS)
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
