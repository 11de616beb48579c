"""What an operator can do with LoRA adapters: load, unload, pin; on all engines or on none.

A change goes to every engine of the model that is ready. If one refuses, the others go back to
what is desired, which has not changed. Engines that sleep, start or are down catch up later.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from appliance.supervisor.adapter_files import check_name, find_adapter
from appliance.supervisor.adapter_sync import AdapterSync, forget
from appliance.supervisor.adapters import with_content
from appliance.supervisor.admin.ports import ConflictError, NotFoundError, RefusedError
from appliance.supervisor.admin.schemas import LoadAdapterBody, Operation, OperationKind
from appliance.supervisor.desired_state import WantedAdapter
from appliance.supervisor.lifecycle import EngineState
from appliance.supervisor.managed_engine import ManagedEngine
from appliance.supervisor.operations import OperationRegistry
from engine.client.core_client import EngineClientError, UtilityCallError
from engine.wire.calls import AdapterState
from engine.wire.header import TraceContext

logger = logging.getLogger(__name__)

DISABLED_HINT = "Start with `quarterdeck serve --adapter-root DIR` to allow adapters below DIR."


MAX_ADAPTERS = 512
"""At a time: gateways are told all of them at every change."""


@dataclass(frozen=True, slots=True)
class _Change:
    """An operation that has not ended."""

    operation_id: str
    kind: OperationKind
    adapter: WantedAdapter


Run = Callable[[WantedAdapter, Sequence[ManagedEngine], str], Awaitable[None]]
"""Carries a change out on engines that nobody else touches meanwhile; ends the operation."""


class AdapterVerbs:
    """Carries out the verbs; owned by the supervisor, whose TaskGroup holds what runs.

    Args:
        sync: Reaches the engines.
        registry: Of operations.
        tasks: Holds what runs.
        settle: Called at the end of each change: engines that could not take part need care.
    """

    def __init__(
        self,
        sync: AdapterSync,
        registry: OperationRegistry,
        tasks: asyncio.TaskGroup,
        settle: Callable[[], None],
    ) -> None:
        self._adapters = sync.adapters
        self._hooks = sync.hooks
        self._sync = sync
        self._registry = registry
        self._tasks = tasks
        self._settle = settle
        self._turn = asyncio.Lock()
        self._changes: dict[str, _Change] = {}

    # ------------------------------------------------------------ verbs

    async def load(self, name: str, body: LoadAdapterBody, actor: str) -> Operation:
        """Check an adapter, then begin to load it. Raises RefusedError, ConflictError."""
        if not self._sync.roots:
            message = "this appliance takes no adapters"
            raise ConflictError(message, "disabled", [], DISABLED_HINT)
        check_name(name, self._adapters.served_names)
        model = self._model(body.model)
        path = await asyncio.to_thread(find_adapter, body.path, self._sync.roots)
        before = self._adapters.get(name)
        pinned = body.pinned if body.pinned is not None else bool(before and before.pinned)
        adapter = WantedAdapter(name, str(path), model, "", pinned)
        running = self._running(name, "lora.load", adapter)
        if running is not None:
            return running
        self._check_room(adapter, before)
        if not self._ready(model):
            raise self._nobody_ready(model)
        if before is None:
            self._adapters.arrives(adapter)
        return self._begin("lora.load", adapter, actor, self._run_load)

    def unload(self, name: str, actor: str) -> Operation:
        """Begin to unload an adapter. Raises NotFoundError, ConflictError."""
        adapter = self._wanted(name)
        running = self._running(name, "lora.unload", adapter)
        return running or self._begin("lora.unload", adapter, actor, self._run_unload)

    def pin(self, name: str, actor: str, *, pinned: bool) -> Operation:
        """Begin to pin or unpin an adapter. Raises NotFoundError, ConflictError."""
        kind: Literal["lora.pin", "lora.unpin"] = "lora.pin" if pinned else "lora.unpin"
        before = self._wanted(name)
        adapter = replace(before, pinned=pinned)
        running = self._running(name, kind, adapter)
        if running is not None:
            return running
        if before.pinned == pinned:
            return self._registry.already_done(kind, name, actor, kind.removeprefix("lora."))
        return self._begin(kind, adapter, actor, self._run_pin)

    def _model(self, asked: str | None) -> str:
        """Return the served name that is meant; the first one stands for those who do not care."""
        names = self._adapters.served_names
        if asked is None:
            return names[0]
        if asked not in names:
            hint = f"Served are: {', '.join(dict.fromkeys(names))}."
            raise RefusedError("model_not_found", "the model is not served here", hint)
        return self._adapters.fits(asked)[0].plan.served_names[0]

    def _check_room(self, adapter: WantedAdapter, before: WantedAdapter | None) -> None:
        if before is not None and before.model != adapter.model:
            message = f"{adapter.name} is an adapter of {before.model}"
            raise ConflictError(message, "loaded", [], "Unload it, or take another name.")
        if before is None and len(self._adapters) >= MAX_ADAPTERS:
            message = f"there are {MAX_ADAPTERS} adapters, and no more may be"
            raise ConflictError(message, "full", [], "Unload one first.")

    def _nobody_ready(self, model: str) -> ConflictError:
        states = {engine.life.state.value for engine in self._adapters.fits(model)}
        message = f"no engine that serves {model} is ready to load it"
        return ConflictError(message, ", ".join(sorted(states)), [], "Wake or start one first.")

    def _wanted(self, name: str) -> WantedAdapter:
        adapter = self._adapters.get(name)
        if adapter is None:
            raise NotFoundError(f"there is no adapter {name}")
        return adapter

    # ------------------------------------------------------------ operations

    def _running(self, name: str, kind: OperationKind, adapter: WantedAdapter) -> Operation | None:
        """Return the operation that does this very thing already. Raises ConflictError."""
        change = self._changes.get(name)
        if change is None:
            return None
        if (change.kind, change.adapter) == (kind, adapter):
            return self._registry.get(change.operation_id)
        message = f"{change.kind} of {name} ({change.operation_id}) is under way"
        raise ConflictError(message, "changing", [], "Wait for its end.")

    def _begin(
        self,
        kind: OperationKind,
        adapter: WantedAdapter,
        actor: str,
        run: Run,
    ) -> Operation:
        operation = self._registry.begin(kind, adapter.name, actor)
        self._changes[adapter.name] = _Change(operation.id, kind, adapter)
        self._tasks.create_task(self._run(adapter, operation.id, run))
        return operation

    async def _run(self, adapter: WantedAdapter, operation_id: str, run: Run) -> None:
        """Run one change at a time; whatever happens, the operation ends."""
        try:
            async with self._turn:
                engines = self._ready(adapter.model)
                async with self._sync.alone_on(engines):
                    await run(adapter, [e for e in engines if _is_ready(e)], operation_id)
        except Exception:
            logger.exception("operation %s failed", operation_id)
            self._registry.fail(operation_id, "the supervisor failed; its log says how")
        finally:
            self._adapters.arrived(adapter.name)
            del self._changes[adapter.name]
            self._hooks.changed()
            self._settle()

    def _ready(self, model: str) -> list[ManagedEngine]:
        return [engine for engine in self._adapters.fits(model) if _is_ready(engine)]

    async def _on_all(
        self,
        engines: Sequence[ManagedEngine],
        call: Callable[[ManagedEngine], Awaitable[AdapterState]],
    ) -> tuple[dict[str, AdapterState], list[str]]:
        """Make a call on engines at once; return what they answer and what they complain of."""
        states: dict[str, AdapterState] = {}
        complaints: list[str] = []

        async def ask(engine: ManagedEngine) -> None:
            try:
                states[engine.engine_id] = await call(engine)
            except UtilityCallError as error:
                complaints.append(f"{engine.engine_id} refuses: {error.message}")
            except EngineClientError as error:
                forget(engine.facts.adapters)
                complaints.append(f"{engine.engine_id}: {error}")

        async with asyncio.TaskGroup() as calls:
            for engine in engines:
                calls.create_task(ask(engine))
        return states, sorted(complaints)

    async def _give_up(
        self,
        name: str,
        engines: Sequence[ManagedEngine],
        complaints: Sequence[str],
        operation_id: str,
        context: TraceContext,
    ) -> None:
        """Take every engine back to what is desired; tell why, and who lost it on the way."""
        lost: list[str] = []
        for engine in engines:
            errors = engine.facts.adapters.errors
            had_it = name not in errors
            await self._sync.settle(engine, context)
            if had_it and name in errors:
                lost.append(f"{engine.engine_id} could not go back: {errors[name]}")
        outcome = lost or ["nothing has changed"]
        self._registry.fail(operation_id, "; ".join([*complaints, *outcome]))

    # ------------------------------------------------------------ load

    async def _run_load(
        self, adapter: WantedAdapter, engines: Sequence[ManagedEngine], operation_id: str
    ) -> None:
        context = self._registry.context(operation_id)
        states, complaints = await self._on_all(
            engines, lambda engine: self._sync.load(engine, adapter, context)
        )
        complaints = complaints or _disagreement(states)
        if complaints or not states:
            complaints = complaints or ["no engine is ready any more"]
            await self._give_up(adapter.name, engines, complaints, operation_id, context)
            return
        state = next(iter(states.values()))
        self._adapters.put(with_content(adapter, state))
        self._hooks.journal("adapter.loaded", "info", adapter.name, _loaded_text(state, states))
        await self._told()
        result = {
            "content_hash": state.content_hash,
            "rank": state.rank,
            "num_bytes": state.num_bytes,
            "pinned": adapter.pinned,
            "engines": sorted(states),
        }
        self._registry.finish(operation_id, result)

    # ------------------------------------------------------------ unload

    async def _run_unload(
        self, adapter: WantedAdapter, engines: Sequence[ManagedEngine], operation_id: str
    ) -> None:
        """Gateways forget the name first; what runs goes on to its end."""
        context = self._registry.context(operation_id)
        self._adapters.drop(adapter.name)
        await self._told()
        running = 0
        for engine in engines:
            try:
                running += await self._sync.unload(engine, adapter.name, context)
            except EngineClientError as error:  # its adapters are looked at again
                logger.warning("%s may still have %s: %s", engine.engine_id, adapter.name, error)
                forget(engine.facts.adapters)
        self._hooks.journal("adapter.unloaded", "info", adapter.name, _unloaded_text(running))
        self._registry.finish(operation_id, {"running_requests": running})

    # ------------------------------------------------------------ pin

    async def _run_pin(
        self, adapter: WantedAdapter, engines: Sequence[ManagedEngine], operation_id: str
    ) -> None:
        context = self._registry.context(operation_id)
        holding = [e for e in engines if adapter.name in e.facts.adapters.held]
        states, complaints = await self._on_all(
            holding, lambda engine: self._sync.pin(engine, adapter, context)
        )
        for engine in holding:
            if engine.engine_id in states:
                engine.facts.adapters.held[adapter.name] = states[engine.engine_id]
        if complaints:
            await self._give_up(adapter.name, holding, complaints, operation_id, context)
            return
        self._adapters.put(adapter)
        self._registry.finish(operation_id, {"pinned": adapter.pinned, "engines": sorted(states)})

    async def _told(self) -> None:
        """What has changed is known to the gateways before the operation ends."""
        self._hooks.changed()
        await self._hooks.tell_gateways()


def _is_ready(engine: ManagedEngine) -> bool:
    return engine.life.state is EngineState.READY


def _disagreement(states: Mapping[str, AdapterState]) -> list[str]:
    """Complain when engines have read different content under the same path."""
    if len({state.content_hash for state in states.values()}) <= 1:
        return []
    read = (f"{engine_id} {state.content_hash[:12]}" for engine_id, state in states.items())
    return [f"the engines read different content: {', '.join(sorted(read))}"]


def _loaded_text(state: AdapterState, states: Mapping[str, AdapterState]) -> str:
    where, content = ", ".join(sorted(states)), state.content_hash[:12]
    return f"rank {state.rank}, content {content}, on {where}"


def _unloaded_text(running: int) -> str:
    return "unloaded" if not running else f"unloaded; {running} requests use it to their end"
