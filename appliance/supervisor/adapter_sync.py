"""Makes what one engine has of LoRA adapters equal to what it should have.

The same few steps replay adapters to an engine that was started anew, catch up with what changed
while it slept, and take it back to where it was when a change did not succeed everywhere.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from appliance.supervisor.adapter_facts import AdapterFacts
from appliance.supervisor.adapter_files import find_adapter
from appliance.supervisor.adapters import Adapters, Difference, Load, Pin, Unload, is_known
from appliance.supervisor.admin.ports import RefusedError
from appliance.supervisor.desired_state import WantedAdapter
from appliance.supervisor.managed_engine import ManagedEngine
from engine.client.core_client import AsyncEngineCoreClient, EngineClientError, UtilityCallError
from engine.clock import now_ns
from engine.wire.calls import AdapterState, ListAdapters, LoadAdapter, PinAdapter, UnloadAdapter
from engine.wire.header import TraceContext

logger = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 120.0
CALL_TIMEOUT_S = 10.0
CHANGED_ON_DISK = (
    "its files have changed since it was loaded; load it again to take them as they are"
)

Journal = Callable[[str, Literal["info", "warning", "error"], str, str], None]
"""Called with (kind, level, subject, text)."""


@dataclass(frozen=True, slots=True)
class AdapterHooks:
    """Whom changes are told to."""

    journal: Journal
    changed: Callable[[], None]
    """What an engine has is another; rows and routes are."""
    tell_gateways: Callable[[], Awaitable[None]]
    """Awaited before an operation ends: the next request shall see its effect."""


class AdapterSync:
    """Calls engines, one call at a time for each.

    Args:
        adapters: What is wanted, and what is known of each engine.
        client: Reaches the engines.
        roots: Directories that adapters may be in; none: no adapters.
        hooks: Are told of every change.
    """

    def __init__(
        self,
        adapters: Adapters,
        client: AsyncEngineCoreClient,
        roots: Sequence[Path],
        hooks: AdapterHooks,
    ) -> None:
        self.adapters = adapters
        self._client = client
        self.roots = roots
        self.hooks = hooks
        self._locks: dict[str, asyncio.Lock] = {}

    @contextlib.asynccontextmanager
    async def alone_on(self, engines: Sequence[ManagedEngine]) -> AsyncGenerator[None]:
        """Hold engines, so that nobody else changes their adapters meanwhile."""
        async with contextlib.AsyncExitStack() as held:
            for engine in sorted(engines, key=lambda engine: engine.engine_id):
                lock = self._locks.setdefault(engine.engine_id, asyncio.Lock())
                await held.enter_async_context(lock)
            yield

    async def settle(self, engine: ManagedEngine, context: TraceContext) -> None:
        """Ask an engine what it has and carry out what differs; the caller holds the engine.

        What it refuses is written down as an error of that adapter on that engine. If the engine
        cannot be asked, it counts as having nothing until it can.
        """
        facts = engine.facts.adapters
        try:
            await self._list(engine, facts, context)
            self.hooks.changed()
            for difference in self.adapters.differences(engine):
                await self._carry_out(engine, difference, context)
                self.hooks.changed()
        except EngineClientError as error:
            logger.warning("adapters of %s are not as they should be: %s", engine.engine_id, error)
            forget(facts)
            self.hooks.changed()

    async def _list(
        self, engine: ManagedEngine, facts: AdapterFacts, context: TraceContext
    ) -> None:
        if not is_known(engine):
            facts.errors.clear()  # it has been started or woken since: all is tried again
        step = engine.facts.stats.step if engine.facts.stats else None
        if self.adapters.wanted_on(engine) or facts.held or facts.is_unsure:
            listed = await self._call_list(engine, context)
            facts.held = {state.name: state for state in listed}
        facts.is_unsure = False
        facts.listed_ns, facts.listed_step = now_ns(), step

    async def _call_list(
        self, engine: ManagedEngine, context: TraceContext
    ) -> tuple[AdapterState, ...]:
        listed = await self._client.call(
            engine.engine_id, ListAdapters(), timeout_s=CALL_TIMEOUT_S, context=context
        )
        return listed.adapters

    async def _carry_out(
        self, engine: ManagedEngine, difference: Difference, context: TraceContext
    ) -> None:
        facts = engine.facts.adapters
        match difference:
            case Load(adapter):
                await self._load_again(engine, adapter, context)
            case Pin(adapter):
                try:
                    facts.held[adapter.name] = await self.pin(engine, adapter, context)
                except UtilityCallError as error:
                    self._fail(engine, adapter.name, f"cannot be pinned: {error.message}")
            case Unload(name):
                await self.unload(engine, name, context)

    async def _load_again(
        self, engine: ManagedEngine, adapter: WantedAdapter, context: TraceContext
    ) -> None:
        """Load what is wanted, and only that: other content under its path is not served."""
        try:
            await asyncio.to_thread(find_adapter, adapter.path, self.roots)
            state = await self.load(engine, adapter, context)
        except (RefusedError, UtilityCallError) as error:
            text = error.message if isinstance(error, UtilityCallError) else str(error)
            self._fail(engine, adapter.name, text)
            return
        if state.content_hash == adapter.content_hash:
            self.hooks.journal(
                "adapter.loaded", "info", adapter.name, f"is back on {engine.engine_id}"
            )
        else:
            await self.unload(engine, adapter.name, context)
            self._fail(engine, adapter.name, CHANGED_ON_DISK)

    def _fail(self, engine: ManagedEngine, name: str, text: str) -> None:
        engine.facts.adapters.errors[name] = text
        self.hooks.journal("adapter.error", "error", name, f"not on {engine.engine_id}: {text}")

    # ------------------------------------------------------------ single calls

    async def load(
        self, engine: ManagedEngine, adapter: WantedAdapter, context: TraceContext
    ) -> AdapterState:
        """Load an adapter as it lies on disk now. Raises EngineClientError."""
        facts = engine.facts.adapters
        facts.loading.add(adapter.name)
        self.hooks.changed()
        try:
            call = LoadAdapter(name=adapter.name, path=adapter.path, pinned=adapter.pinned)
            state = await self._client.call(
                engine.engine_id, call, timeout_s=LOAD_TIMEOUT_S, context=context
            )
        finally:
            facts.loading.discard(adapter.name)
        facts.held[adapter.name] = state
        facts.errors.pop(adapter.name, None)
        return state

    async def pin(
        self, engine: ManagedEngine, adapter: WantedAdapter, context: TraceContext
    ) -> AdapterState:
        """Pin or unpin an adapter, as it is wanted. Raises EngineClientError."""
        call = PinAdapter(name=adapter.name, pinned=adapter.pinned)
        return await self._client.call(
            engine.engine_id, call, timeout_s=CALL_TIMEOUT_S, context=context
        )

    async def unload(self, engine: ManagedEngine, name: str, context: TraceContext) -> int:
        """Take a name away; return how many requests use it to their end.

        Raises:
            EngineClientError: the engine did not answer; that it had no such name is no error.
        """
        facts = engine.facts.adapters
        facts.errors.pop(name, None)
        running = 0
        try:
            report = await self._client.call(
                engine.engine_id,
                UnloadAdapter(name=name),
                timeout_s=CALL_TIMEOUT_S,
                context=context,
            )
            running = report.running_requests
        except UtilityCallError as error:
            logger.info("%s: %s", engine.engine_id, error)
        facts.held.pop(name, None)
        return running


def forget(facts: AdapterFacts) -> None:
    """Nobody knows what the engine has: it must be asked before requests rely on it."""
    facts.listed_ns = None
    facts.is_unsure = True
