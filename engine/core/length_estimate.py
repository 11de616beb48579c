"""Predicts how long a request's output will be: as long as most of its tenant's recent ones."""

from bisect import bisect_left, insort
from collections import OrderedDict, deque

from engine.core.request import EngineRequest

WINDOW = 64
"""Recent outputs of a tenant that count."""
MIN_SAMPLES = 8
"""Fewer than that predict nothing."""
QUANTILE = 0.75
"""Outputs that are at most as long as predicted: a bit too much room costs less than having to
compute a request twice."""
MAX_TENANTS = 256
"""Beyond, the tenant that was heard of longest ago is forgotten."""


class _Lengths:
    """The last `WINDOW` lengths, in the order of their coming and sorted."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []

    def add(self, length: int) -> None:
        if len(self._recent) == WINDOW:
            oldest = self._recent.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._recent.append(length)
        insort(self._sorted, length)

    def quantile(self) -> int | None:
        count = len(self._sorted)
        return None if count < MIN_SAMPLES else self._sorted[int(QUANTILE * (count - 1))]


class LengthEstimate:
    """Moving quantiles of the output lengths of each tenant.

    Args:
        enabled: False: nothing is ever predicted.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self.predictions = 0
        """Ended requests whose length had been predicted."""
        self.error_tokens = 0
        """Sum of the absolute errors of those predictions."""
        self._enabled = enabled
        self._tenants: OrderedDict[str | None, _Lengths] = OrderedDict()

    def predict(self, request: EngineRequest) -> int | None:
        """Return how many tokens the request's whole output may have; None: no idea."""
        lengths = self._tenants.get(request.tenant) if self._enabled else None
        length = lengths.quantile() if lengths else None
        return None if length is None else min(length, request.sampling.max_tokens)

    def observe(self, request: EngineRequest) -> None:
        """Learn from a request that came to its own end."""
        if not self._enabled:
            return
        if request.predicted_tokens is not None:
            self.predictions += 1
            self.error_tokens += abs(request.num_output_tokens - request.predicted_tokens)
        lengths = self._tenants.setdefault(request.tenant, _Lengths())
        self._tenants.move_to_end(request.tenant)
        lengths.add(request.num_output_tokens)
        if len(self._tenants) > MAX_TENANTS:
            self._tenants.popitem(last=False)
