"""Fairness among tenants: virtual token counters, and a share of the places for each.

Every tenant has a counter of the service it got: tokens in and, at twice the price, tokens out,
divided by its weight. Who has got least is next. A tenant that comes back is lifted to the least
counter of those that wait, so that nobody saves up (Sheng et al. 2024, "Fairness in Serving Large
Language Models", https://arxiv.org/abs/2401.00588).

Order alone would let a tenant who fills all places make the others wait for the end of its longest
answers. So tenants also have a share, by weight among those that are there, of places and of the
KV cache: who is below it may at once take the place of one who is above it and has got more.
"""

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass

from engine.core.batch import ConfigError
from engine.core.policies.policy import Policy, Rank
from engine.core.request import EngineRequest

INPUT_PRICE = 1
OUTPUT_PRICE = 2
MAX_TENANTS = 1024
"""Tenants whose counters are kept; beyond, those that are not there and got least are forgotten."""


@dataclass(slots=True)
class _Tenant:
    weight: float
    counter: float = 0.0
    waiting: int = 0
    running: int = 0
    tokens: int = 0
    """In the KV cache, or soon: all that its running requests have."""


class Fair(Policy):
    """Weighted fair service of tenants; inside a tenant, first come first served.

    Args:
        max_num_seqs: Requests that can run at once.
        max_num_tokens: Tokens that the KV cache holds.
        weights: Share of a tenant; 1 when it is not named.

    Raises:
        ConfigError: a weight is not above 0.
    """

    takes_places = True

    def __init__(
        self, max_num_seqs: int, max_num_tokens: int, weights: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(max_num_seqs, max_num_tokens)
        self._weights = dict(weights or {})
        for name, weight in self._weights.items():
            if not weight > 0.0:
                raise ConfigError(f"the weight of tenant {name!r} must be above 0; it is {weight}")
        self._tenants: dict[str | None, _Tenant] = {}
        self._here: dict[str | None, _Tenant] = {}
        """Those with waiting or running requests."""
        self._last_counter = 0.0
        """Of the tenant that left the waiting ones last."""

    def counters(self) -> dict[str | None, float]:
        """Return the service that each known tenant has got, by its weight."""
        return {name: tenant.counter for name, tenant in self._tenants.items()}

    # ------------------------------------------------------------ asked

    def lane(self, request: EngineRequest) -> Hashable:
        """Return its tenant."""
        return request.tenant

    def rank(self, request: EngineRequest) -> Rank:
        """Return its tenant's counter, then its arrival."""
        return (self._tenants[request.tenant].counter, request.arrival)

    def victim_for(
        self,
        request: EngineRequest,
        running: Collection[EngineRequest],
        gone: Collection[EngineRequest],
    ) -> EngineRequest | None:
        """Return the youngest request of a tenant above its share, if `request`'s is below it."""
        tenant = self._here[request.tenant]
        part = 1.0 / sum(other.weight for other in self._here.values())
        if self._is_above(tenant, part, 1, len(request.token_ids)):
            return None  # else the two might take each other's place for ever
        above = [
            name
            for name, other in self._here.items()
            if other is not tenant
            and other.counter >= tenant.counter
            and self._is_above(other, part, *_lost(name, gone))
        ]
        if not above:
            return None
        most = max(above, key=lambda name: self._here[name].counter)
        theirs = (other for other in running if other.tenant == most)
        return max(theirs, key=lambda other: other.arrival, default=None)

    def _is_above(self, tenant: _Tenant, part: float, places: int, tokens: int) -> bool:
        """Whether a tenant with so many more would be above its share; one place is always its."""
        share = tenant.weight * part
        return (
            tenant.running + places > max(1.0, share * self.max_num_seqs)
            or tenant.tokens + tokens > share * self.max_num_tokens
        )

    # ------------------------------------------------------------ told

    def note_waiting(self, request: EngineRequest) -> None:
        """Lift a tenant that comes back; one that gave way has not been away."""
        tenant = self._tenant(request.tenant)
        if request.running:
            tenant.running -= 1
            tenant.tokens -= len(request.token_ids)
        elif tenant.waiting == 0:
            waiting = [other.counter for other in self._here.values() if other.waiting]
            tenant.counter = max(tenant.counter, min(waiting, default=self._last_counter))
        tenant.waiting += 1
        self._here[request.tenant] = tenant

    def _tenant(self, name: str | None) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) >= MAX_TENANTS:
                self._forget_one()
            weight = 1.0 if name is None else self._weights.get(name, 1.0)
            tenant = self._tenants[name] = _Tenant(weight)
        return tenant

    def _forget_one(self) -> None:
        away = [name for name in self._tenants if name not in self._here]
        if away:
            del self._tenants[min(away, key=lambda name: self._tenants[name].counter)]

    def note_running(self, request: EngineRequest) -> None:
        """Charge the prompt, once, without what the prefix cache had of it."""
        tenant = self._stop_waiting(request)
        tenant.running += 1
        tenant.tokens += len(request.token_ids)
        if request.preemptions == 0:
            uncached = request.num_prompt_tokens - request.cached_tokens
            tenant.counter += INPUT_PRICE * uncached / tenant.weight

    def _stop_waiting(self, request: EngineRequest) -> _Tenant:
        tenant = self._here[request.tenant]
        tenant.waiting -= 1
        if tenant.waiting == 0:
            self._last_counter = tenant.counter
        return tenant

    def note_end(self, request: EngineRequest) -> None:
        """Free its place."""
        if request.running:
            tenant = self._here[request.tenant]
            tenant.running -= 1
            tenant.tokens -= len(request.token_ids)
        else:
            tenant = self._stop_waiting(request)
        if tenant.waiting + tenant.running == 0:
            assert tenant.tokens == 0, "who is not here holds nothing"
            del self._here[request.tenant]

    def note_output(self, request: EngineRequest, num_tokens: int) -> None:
        """Charge new tokens."""
        tenant = self._here[request.tenant]
        tenant.tokens += num_tokens
        tenant.counter += OUTPUT_PRICE * num_tokens / tenant.weight


def _lost(name: str | None, gone: Collection[EngineRequest]) -> tuple[int, int]:
    """Return what a tenant would have less, as negative places and tokens."""
    theirs = [request for request in gone if request.tenant == name]
    return -len(theirs), -sum(len(request.token_ids) for request in theirs)
