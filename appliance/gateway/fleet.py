"""What a gateway knows of the fleet, and which engine a request goes to.

The supervisor's word is whole and newest-wins. Until it speaks again, the gateway only remembers
what its own sockets have told it since: that an epoch died, or that an engine is asleep.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from appliance.control_link.messages import EngineRoute, FleetState
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
) -> Decision:
    """Choose among the engines that serve a model: the least loaded ready one, if any.

    Args:
        routes: The candidates, as the supervisor last told.
        load: Requests in flight from this gateway, by engine.
        dead: Incarnations that died since.
        asleep: Incarnations that refused a request since, because they sleep.
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
        return Dispatch(min(ready, key=lambda route: load.get(route.engine_id, 0)))
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

    def mark_asleep(self, engine_id: str, epoch: int) -> None:
        """This incarnation refused a request; leave it alone until the next state, or a while."""
        self._asleep_until_ns[engine_id, epoch] = now_ns() + REFUSED_FOR_NS

    def routes(self, model: str) -> list[EngineRoute]:
        """Engines that serve a model under this name."""
        state = self.state
        return [r for r in state.engines if model in r.served_names] if state else []

    def choose(self, model: str) -> Decision:
        """Decide where a request for `model` goes now."""
        asleep = [who for who, until_ns in self._asleep_until_ns.items() if until_ns > now_ns()]
        return choose(self.routes(model), self.load, self._dead, asleep)

    def models(self) -> dict[str, EngineRoute]:
        """Every served name and the first engine that serves it, in order."""
        served: dict[str, EngineRoute] = {}
        for route in self.state.engines if self.state else ():
            for name in route.served_names:
                served.setdefault(name, route)
        return served

    def max_model_len(self, model: str) -> int | None:
        """Context that every engine of this model has room for; None before one was ready."""
        known = [r.ready.max_model_len for r in self.routes(model) if r.ready is not None]
        return min(known, default=None)
