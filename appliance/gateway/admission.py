"""Admission: how many requests may wait, and how much each key may ask for. Pure; clock injected.

Both answers come at once: a refused request costs nothing and knows when to come back.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from appliance.gateway.openai.errors import ApiError, Headers

MAX_RETRY_AFTER_S = 60.0
"""The OpenAI SDK gives up when it is told to wait much longer."""
UNKNOWN_RETRY_AFTER_S = 5.0
MAX_TRACKED_KEYS = 10_000
REMEMBERED_DEPARTURES = 64
SECONDS_PER_MINUTE = 60.0

Clock = Callable[[], float]
"""Seconds of a monotonic clock."""


class WaitingRoom:
    """Counts choices that were admitted and have no first token yet.

    Args:
        limit: Most that may wait.
        clock: Monotonic seconds.
    """

    def __init__(self, limit: int, clock: Clock) -> None:
        self.limit = limit
        self._clock = clock
        self._departures_s: deque[float] = deque(maxlen=REMEMBERED_DEPARTURES)
        self.waiting = 0

    def enter(self, count: int) -> None:
        """Take `count` places.

        Raises:
            ApiError: `server_overloaded`, with the time in which half the room should empty.
        """
        if self.waiting + count > self.limit:
            raise ApiError(
                "server_overloaded",
                "Too many requests are waiting; try again later.",
                retry_after_s=self.retry_after_s(),
            )
        self.waiting += count

    def leave(self) -> None:
        """Give a place back: a first token came, or the choice ended without one."""
        self.waiting -= 1
        self._departures_s.append(self._clock())

    def cancel(self, count: int) -> None:
        """Give places back that were never used: they say nothing about the pace."""
        self.waiting -= count

    def retry_after_s(self) -> float:
        """Time for half of those that wait to leave, at the pace of the last departures."""
        if len(self._departures_s) < 2:  # noqa: PLR2004
            return UNKNOWN_RETRY_AFTER_S
        span_s = max(self._clock() - self._departures_s[0], 1e-3)
        pace = len(self._departures_s) / span_s
        return min(max(1.0, self.waiting / 2 / pace), MAX_RETRY_AFTER_S)


class TokenBucket:
    """Holds up to a minute's allowance and refills evenly.

    Args:
        per_minute: Allowance, which is also the capacity.
        now_s: The current time.
    """

    def __init__(self, per_minute: float, now_s: float) -> None:
        self.capacity = per_minute
        self._level = per_minute
        self._at_s = now_s

    def level(self, now_s: float) -> float:
        """What is left now; negative when actual use exceeded the estimate."""
        refill = (now_s - self._at_s) * self.capacity / SECONDS_PER_MINUTE
        self._level = min(self.capacity, self._level + refill)
        self._at_s = now_s
        return self._level

    def wait_s(self, amount: float, now_s: float) -> float:
        """How long until `amount` is there; 0 when it is."""
        short = min(amount, self.capacity) - self.level(now_s)
        return max(0.0, short * SECONDS_PER_MINUTE / self.capacity)

    def take(self, amount: float, now_s: float) -> None:
        """Take `amount` (negative: give it back)."""
        self._level = min(self.capacity, self.level(now_s) - amount)


@dataclass(frozen=True, slots=True)
class RateStatus:
    """What the `x-ratelimit-*` headers say."""

    limit_requests: float
    remaining_requests: float
    reset_requests_s: float
    limit_tokens: float
    remaining_tokens: float
    reset_tokens_s: float

    def headers(self) -> Headers:
        """The six headers."""
        return [
            (b"x-ratelimit-limit-requests", _count(self.limit_requests)),
            (b"x-ratelimit-remaining-requests", _count(self.remaining_requests)),
            (b"x-ratelimit-reset-requests", format_duration(self.reset_requests_s).encode()),
            (b"x-ratelimit-limit-tokens", _count(self.limit_tokens)),
            (b"x-ratelimit-remaining-tokens", _count(self.remaining_tokens)),
            (b"x-ratelimit-reset-tokens", format_duration(self.reset_tokens_s).encode()),
        ]


def _count(value: float) -> bytes:
    return str(max(0, math.floor(value))).encode()


def format_duration(seconds: float) -> str:
    """Write a duration as OpenAI does: `20ms`, `1s`, `6m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


class KeyLimits:
    """A bucket of requests and one of tokens for each key.

    Args:
        requests_per_minute: Allowance of each key.
        tokens_per_minute: Allowance of each key, prompt and generated tokens together.
        clock: Monotonic seconds.
    """

    def __init__(self, requests_per_minute: float, tokens_per_minute: float, clock: Clock) -> None:
        self.requests_per_minute = requests_per_minute
        self.tokens_per_minute = tokens_per_minute
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[TokenBucket, TokenBucket]] = OrderedDict()

    def charge(self, key_id: str, tokens: float) -> RateStatus:
        """Take one request and `tokens` from the key's buckets.

        Raises:
            ApiError: `rate_limit_exceeded`; nothing was taken.
        """
        now_s = self._clock()
        requests, budget = self._of(key_id, now_s)
        self._refuse(requests.wait_s(1, now_s), "requests")
        self._refuse(budget.wait_s(tokens, now_s), "tokens")
        requests.take(1, now_s)
        budget.take(tokens, now_s)
        return self.status(key_id)

    def settle(self, key_id: str, charged: float, used: float) -> None:
        """Give back what was charged beyond what was used (or take the rest)."""
        now_s = self._clock()
        self._of(key_id, now_s)[1].take(used - charged, now_s)

    def status(self, key_id: str) -> RateStatus:
        """The key's allowance as the headers tell it."""
        now_s = self._clock()
        requests, budget = self._of(key_id, now_s)
        return RateStatus(
            requests.capacity,
            requests.level(now_s),
            requests.wait_s(requests.capacity, now_s),
            budget.capacity,
            budget.level(now_s),
            budget.wait_s(budget.capacity, now_s),
        )

    @staticmethod
    def _refuse(wait_s: float, kind: str) -> None:
        if wait_s > 0:
            raise ApiError(
                "rate_limit_exceeded",
                f"This key has reached its limit of {kind} per minute.",
                retry_after_s=min(wait_s, MAX_RETRY_AFTER_S),
                kind=kind,
            )

    def _of(self, key_id: str, now_s: float) -> tuple[TokenBucket, TokenBucket]:
        buckets = self._buckets.get(key_id)
        if buckets is None:
            buckets = (
                TokenBucket(self.requests_per_minute, now_s),
                TokenBucket(self.tokens_per_minute, now_s),
            )
            self._buckets[key_id] = buckets
            if len(self._buckets) > MAX_TRACKED_KEYS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(key_id)
        return buckets


class Admission:
    """Both limits of one gateway; new limits keep who is waiting and refill the buckets.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.room = WaitingRoom(limit=256, clock=clock)
        self.keys = KeyLimits(6000, 4_000_000, clock)

    def set_limits(
        self, max_queued: int, requests_per_minute: float, tokens_per_minute: float
    ) -> None:
        """Apply the limits of a fleet state."""
        self.room.limit = max_queued
        current = (self.keys.requests_per_minute, self.keys.tokens_per_minute)
        if current != (requests_per_minute, tokens_per_minute):
            self.keys = KeyLimits(requests_per_minute, tokens_per_minute, self._clock)
