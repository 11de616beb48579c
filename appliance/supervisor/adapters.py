"""The LoRA adapters of the fleet: what shall be loaded, what each engine has, what differs.

Nothing here calls an engine; `adapter_verbs` carries out the differences.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from appliance.control_link.messages import AdapterRoute
from appliance.supervisor.adapter_facts import AdapterFacts
from appliance.supervisor.admin import schemas
from appliance.supervisor.desired_state import StateDatabase, WantedAdapter
from appliance.supervisor.lifecycle import EngineState
from appliance.supervisor.managed_engine import ManagedEngine
from appliance.telemetry.wall_clock import WallClock
from engine.wire.calls import AdapterState


@dataclass(frozen=True, slots=True)
class Load:
    """The engine lacks this adapter, or has other content under its name."""

    adapter: WantedAdapter


@dataclass(frozen=True, slots=True)
class Pin:
    """The engine has this adapter, pinned the other way."""

    adapter: WantedAdapter


@dataclass(frozen=True, slots=True)
class Unload:
    """The engine has what nobody wants."""

    name: str


Difference = Load | Pin | Unload


class Adapters:
    """Desired adapters, and views of them over all engines.

    Args:
        state: Remembers what is wanted.
        engines: The fleet, by id.
    """

    def __init__(self, state: StateDatabase, engines: Mapping[str, ManagedEngine]) -> None:
        self._state = state
        self._engines = engines
        self._wanted = {adapter.name: adapter for adapter in state.adapters()}
        self._arriving: dict[str, WantedAdapter] = {}
        self._clock = WallClock()

    # ------------------------------------------------------------ desired

    def __len__(self) -> int:
        return len(self._wanted)

    def get(self, name: str) -> WantedAdapter | None:
        """Return what is wanted under a name."""
        return self._wanted.get(name)

    def put(self, adapter: WantedAdapter) -> None:
        """Want an adapter from now on, over restarts; what it replaces is forgotten."""
        self._wanted[adapter.name] = adapter
        self._state.set_adapter(adapter)

    def drop(self, name: str) -> None:
        """Want an adapter no more."""
        del self._wanted[name]
        self._state.drop_adapter(name)

    def arrives(self, adapter: WantedAdapter) -> None:
        """Show an adapter that is being loaded for the first time."""
        self._arriving[adapter.name] = adapter

    def arrived(self, name: str) -> None:
        """It is loaded now, or will not be."""
        self._arriving.pop(name, None)

    @property
    def served_names(self) -> list[str]:
        """Names of models that no adapter may take, in order of the engines."""
        return [name for engine in self._engines.values() for name in engine.plan.served_names]

    def is_shadowed(self, adapter: WantedAdapter) -> bool:
        """Whether a model has been given the adapter's name since."""
        return adapter.name in self.served_names

    def fits(self, model: str) -> list[ManagedEngine]:
        """Engines that serve a model."""
        return [e for e in self._engines.values() if model in e.plan.served_names]

    # ------------------------------------------------------------ desired against actual

    def wanted_on(self, engine: ManagedEngine) -> list[WantedAdapter]:
        """Return what an engine should have."""
        return [
            adapter
            for adapter in self._wanted.values()
            if adapter.model in engine.plan.served_names and not self.is_shadowed(adapter)
        ]

    def differences(self, engine: ManagedEngine) -> list[Difference]:
        """Return what has to be done on an engine, as far as it has not failed already."""
        facts = engine.facts.adapters
        wanted = {adapter.name: adapter for adapter in self.wanted_on(engine)}
        found: list[Difference] = [Unload(name) for name in facts.held if name not in wanted]
        for adapter in wanted.values():
            held = facts.held.get(adapter.name)
            if adapter.name in facts.errors:
                continue
            if held is None or held.content_hash != adapter.content_hash:
                found.append(Load(adapter))
            elif held.pinned != adapter.pinned:
                found.append(Pin(adapter))
        return found

    def usable(self, engine: ManagedEngine) -> tuple[str, ...]:
        """Names that requests to an engine may use now."""
        if not is_known(engine):
            return ()
        held = engine.facts.adapters.held
        return tuple(adapter.name for adapter in self.wanted_on(engine) if _is_same(adapter, held))

    # ------------------------------------------------------------ views

    def routes(self) -> tuple[AdapterRoute, ...]:
        """Return the adapters as gateways need to know them, by name."""
        return tuple(
            AdapterRoute(
                name=adapter.name,
                model=adapter.model,
                content_hash=adapter.content_hash,
                failed_on=tuple(
                    engine.engine_id
                    for engine in self.fits(adapter.model)
                    if engine.life.is_alive and adapter.name in engine.facts.adapters.errors
                ),
            )
            for _, adapter in sorted(self._wanted.items())
            if self.fits(adapter.model) and not self.is_shadowed(adapter)
        )

    def rows(self) -> list[schemas.AdapterRow]:
        """Return the adapters as the admin API shows them, by name."""
        known = {**self._arriving, **self._wanted}
        return [self._row(known[name]) for name in sorted(known)]

    def _row(self, adapter: WantedAdapter) -> schemas.AdapterRow:
        engines = self.fits(adapter.model)
        on_engines = [_on_engine(adapter, engine) for engine in engines]
        states = [
            engine.facts.adapters.held[adapter.name]
            for engine in engines
            if engine.life.is_alive and _is_same(adapter, engine.facts.adapters.held)
        ]
        row = schemas.AdapterRow(
            name=adapter.name,
            state=_overall(on_engines, self.is_shadowed(adapter)),
            model=adapter.model,
            path=adapter.path,
            content_hash=adapter.content_hash,
            pinned=adapter.pinned,
            running_requests=sum(each.running_requests for each in on_engines),
            engines=on_engines,
        )
        return row.model_copy(update=_measured(states, self._clock)) if states else row


def is_known(engine: ManagedEngine) -> bool:
    """Whether the engine has told what it has since it became ready: requests may rely on it."""
    listed_ns = engine.facts.adapters.listed_ns
    is_ready = engine.life.state is EngineState.READY
    return is_ready and listed_ns is not None and listed_ns >= engine.since_ns


def _is_same(adapter: WantedAdapter, held: Mapping[str, AdapterState]) -> bool:
    state = held.get(adapter.name)
    return state is not None and state.content_hash == adapter.content_hash


def _on_engine(adapter: WantedAdapter, engine: ManagedEngine) -> schemas.AdapterOnEngine:
    facts = engine.facts.adapters if engine.life.is_alive else AdapterFacts()
    state = _state_on(adapter, engine, facts)
    shown = schemas.AdapterOnEngine(
        engine=engine.engine_id, state=state, error=facts.errors.get(adapter.name)
    )
    held = facts.held.get(adapter.name)
    if held is None or state != "loaded":
        return shown
    changes = {
        "active": held.active,
        "resident": held.resident,
        "running_requests": held.running_requests,
    }
    return shown.model_copy(update=changes)


def _state_on(
    adapter: WantedAdapter, engine: ManagedEngine, facts: AdapterFacts
) -> schemas.AdapterState:
    if adapter.name in facts.loading:
        return "loading"
    if adapter.name in facts.errors:
        return "error"
    return "loaded" if is_known(engine) and _is_same(adapter, facts.held) else "missing"


def _overall(
    on_engines: Iterable[schemas.AdapterOnEngine], is_shadowed: bool
) -> schemas.AdapterState:
    """The worst news first; engines that sleep or are down do not count beside others."""
    states = {each.state for each in on_engines}
    if is_shadowed or "error" in states:
        return "error"
    if "loading" in states:
        return "loading"
    return "loaded" if "loaded" in states else "missing"


def _measured(states: list[AdapterState], clock: WallClock) -> dict[str, object]:
    """What engines have said of it; they hold the same content."""
    used = [state.used_ns for state in states if state.used_ns is not None]
    return {
        "rank": states[0].rank,
        "num_bytes": states[0].num_bytes,
        "targets": list(states[0].targets),
        "loaded_at": clock.at(min(state.loaded_ns for state in states)),
        "last_used_at": clock.at(max(used)) if used else None,
    }


def with_content(adapter: WantedAdapter, state: AdapterState) -> WantedAdapter:
    """Return the adapter with the identity of what an engine loaded."""
    return replace(adapter, content_hash=state.content_hash)
