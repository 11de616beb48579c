"""What a gateway knows of the fleet, and which engine a request goes to.

The supervisor's word is whole and newest-wins. Until it speaks again, the gateway only remembers
what its own sockets have told it since: that an epoch died, or that an engine is asleep.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from appliance.control_link.messages import AdapterRoute, EngineRoute, FleetState
from engine.client.balance import Balancer
from engine.clock import now_ns

READY = "ready"
ASLEEP = "asleep"
GONE = frozenset({"stopped", "crash_loop", "failed"})
"""States that do not pass by themselves."""
DEAD = GONE | {"backoff"}
"""States without a process."""

REFUSED_FOR_NS = 500_000_000
"""How long a refusal counts when the supervisor says nothing new."""

Incarnation = tuple[str, int]
"""Engine id and epoch."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send it to this engine now."""

    route: EngineRoute


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait for this engine, which starts or wakes."""

    route: EngineRoute


@dataclass(frozen=True, slots=True)
class Asleep:
    """Every engine that could serve it sleeps; this one shall wake."""

    route: EngineRoute


@dataclass(frozen=True, slots=True)
class Unavailable:
    """No engine serves the model, nor will one by itself."""

    route: EngineRoute | None


Decision = Dispatch | Hold | Asleep | Unavailable


def choose(
    routes: Iterable[EngineRoute],
    load: Mapping[str, int],
    dead: Collection[Incarnation] = (),
    asleep: Collection[Incarnation] = (),
    pick: Callable[[Sequence[EngineRoute]], EngineRoute] | None = None,
) -> Decision:
    """Choose among the engines that serve a model: the least loaded ready one, if any.

    Args:
        routes: The candidates, as the supervisor last told.
        load: Requests in flight from this gateway, by engine.
        dead: Incarnations that died since.
        asleep: Incarnations that refused a request since, because they sleep.
        pick: Chooses among several ready ones in another way.
    """
    ready: list[EngineRoute] = []
    resting: list[EngineRoute] = []
    coming: list[EngineRoute] = []
    gone: list[EngineRoute] = []
    for route in routes:
        incarnation = (route.engine_id, route.epoch)
        if route.state in GONE:
            gone.append(route)
        elif route.state == ASLEEP:
            resting.append(route)
        elif route.state == READY and incarnation not in dead and incarnation not in asleep:
            ready.append(route)
        else:
            coming.append(route)
    if ready:
        least = min(ready, key=lambda route: load.get(route.engine_id, 0))
        return Dispatch(pick(ready) if pick is not None and len(ready) > 1 else least)
    if coming:
        return Hold(coming[0])
    if resting:
        return Asleep(resting[0])
    return Unavailable(gone[0] if gone else None)


class Fleet:
    """The last fleet state and what happened since; wakes those who wait for a change."""

    def __init__(self) -> None:
        self.state: FleetState | None = None
        self.load: Counter[str] = Counter()
        """Requests in flight from this gateway, by engine."""
        self._balancer: Balancer[Incarnation] = Balancer()
        self._dead: set[Incarnation] = set()
        self._asleep_until_ns: dict[Incarnation, int] = {}
        self._changed = asyncio.Event()

    def apply(self, state: FleetState) -> None:
        """Work from this state now."""
        self.state = state
        current = {(route.engine_id, route.epoch) for route in state.engines}
        self._dead &= current
        self._asleep_until_ns.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_change(self, timeout_s: float) -> bool:
        """Wait for the next state; false when none came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def known_state(self, timeout_s: float) -> FleetState | None:
        """Return the state, waiting for the first one for at most `timeout_s`."""
        if self.state is None:
            await self.wait_change(timeout_s)
        return self.state

    def mark_dead(self, engine_id: str, epoch: int) -> None:
        """This incarnation died; send it nothing, whatever an older state says."""
        self._dead.add((engine_id, epoch))

    def is_dead(self, route: EngineRoute) -> bool:
        """Whether this incarnation was marked as dead since the supervisor's last word."""
        return (route.engine_id, route.epoch) in self._dead

    def mark_asleep(self, engine_id: str, epoch: int) -> None:
        """This incarnation refused a request; leave it alone until the next state, or a while."""
        self._asleep_until_ns[engine_id, epoch] = now_ns() + REFUSED_FOR_NS

    def adapter(self, model: str) -> AdapterRoute | None:
        """The LoRA adapter of this name; None: it is a base model's name, or nobody's."""
        adapters = self.state.adapters if self.state else ()
        return next((adapter for adapter in adapters if adapter.name == model), None)

    def base_of(self, model: str) -> str:
        """The served name that a request for `model` is computed with: an adapter's base."""
        adapter = self.adapter(model)
        return adapter.model if adapter else model

    def routes(self, model: str) -> list[EngineRoute]:
        """Engines that serve a model, or the base of an adapter, under this name."""
        state, base = self.state, self.base_of(model)
        return [r for r in state.engines if base in r.served_names] if state else []

    def choose(self, model: str, prefix: Sequence[bytes] = ()) -> Decision:
        """Decide where a request for `model` goes now.

        Of several ready engines, the one that was given most of `prefix` (see
        `engine.client.balance`) before, unless it has much more to do than another.

        A ready engine that has not loaded the adapter yet counts as one that starts; one that
        cannot load it does not count.
        """
        asleep = [who for who, until_ns in self._asleep_until_ns.items() if until_ns > now_ns()]
        routes, adapter = self.routes(model), self.adapter(model)
        if adapter is None:
            return choose(routes, self.load, self._dead, asleep, partial(self._pick, prefix))
        able = [route for route in routes if route.engine_id not in adapter.failed_on]
        lacking = {
            (route.engine_id, route.epoch) for route in able if adapter.name not in route.adapters
        }
        pick = partial(self._pick, prefix)
        return choose(able, self.load, self._dead | lacking, asleep, pick)

    def note_sent(self, route: EngineRoute, prefix: Sequence[bytes]) -> None:
        """A request with this beginning was sent there."""
        self._balancer.note((route.engine_id, route.epoch), prefix)

    def _pick(self, prefix: Sequence[bytes], ready: Sequence[EngineRoute]) -> EngineRoute:
        by_incarnation = {(route.engine_id, route.epoch): route for route in ready}
        load = {who: self.load[who[0]] for who in by_incarnation}
        return by_incarnation[self._balancer.choose(list(by_incarnation), load, prefix)]

    def models(self) -> dict[str, EngineRoute]:
        """Every served name, adapters last, and the first engine that serves it, in order."""
        served: dict[str, EngineRoute] = {}
        for route in self.state.engines if self.state else ():
            for name in route.served_names:
                served.setdefault(name, route)
        for adapter in self.state.adapters if self.state else ():
            if adapter.model in served:
                served.setdefault(adapter.name, served[adapter.model])
        return served

    def max_model_len(self, model: str) -> int | None:
        """Context that every engine of this model has room for; None before one was ready."""
        known = [r.ready.max_model_len for r in self.routes(model) if r.ready is not None]
        return min(known, default=None)
