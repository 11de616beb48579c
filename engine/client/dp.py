"""Asyncio clients of several engines that serve the same model: data parallelism.

`DPAsyncMPClient` leaves the choice to a balancer outside, `DPLBAsyncMPClient` makes it itself.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from engine.client.async_mp import AsyncMPClient
from engine.client.balance import Balancer, prefix_hashes
from engine.client.collector import RequestOutputCollector
from engine.client.core_client import EngineDeadError, EngineUnreachableError, OnMessage
from engine.wire.calls import Call
from engine.wire.header import TraceContext
from engine.wire.hops import HopRecord
from engine.wire.messages import AbortReason, AddRequest

ResultT = TypeVar("ResultT")

ANY_ENGINE = ""
"""In place of an engine id: the client chooses."""


class DPAsyncMPClient(AsyncMPClient):
    """A client whose caller, an external balancer, names the engine of each request.

    It knows how many requests each engine has of it (`load`) and where each of them is.

    Args:
        name: As `AsyncMPClient`, like all but `engine_ids`.
        epoch: See there.
        run_dir: See there.
        engine_ids: The engines that share the work.
        on_message: See there.
        on_hop: See there.
    """

    def __init__(
        self,
        name: str,
        epoch: int,
        run_dir: Path,
        engine_ids: Sequence[str],
        *,
        on_message: OnMessage,
        on_hop: Callable[[HopRecord], None],
    ) -> None:
        super().__init__(name, epoch, run_dir, on_message=on_message, on_hop=on_hop)
        self.engine_ids = tuple(engine_ids)
        self._placed: dict[str, str] = {}
        """Engine of each request in flight."""
        self.load: Counter[str] = Counter()
        """Requests in flight, by engine."""

    def add_request(
        self, engine_id: str, request: AddRequest, context: TraceContext, *, external_id: str
    ) -> RequestOutputCollector:
        """Send a request to the engine that the balancer names.

        Raises:
            ValueError: it is none of this client's engines.
            EngineUnreachableError, EngineDeadError: see `AsyncEngineCoreClient.add_request`.
        """
        if engine_id not in self.engine_ids:
            raise ValueError(f"{engine_id!r} is none of {', '.join(self.engine_ids)}")
        collector = super().add_request(engine_id, request, context, external_id=external_id)
        self._placed[request.request_id] = engine_id
        self.load[engine_id] += 1
        return collector

    def abort_requests(
        self, request_ids: Sequence[str], reason: AbortReason, context: TraceContext
    ) -> None:
        """Ask whichever engines have these requests to end them; unknown ids are ignored."""
        by_engine: dict[str, list[str]] = {}
        for request_id in request_ids:
            if request_id in self._placed:
                by_engine.setdefault(self._placed[request_id], []).append(request_id)
        for engine_id, ids in by_engine.items():
            self.abort(engine_id, tuple(ids), reason, context)

    async def call_each(
        self, call: Call[ResultT], *, timeout_s: float, context: TraceContext
    ) -> dict[str, ResultT]:
        """Run a utility call on every live engine, one after the other.

        Raises:
            EngineDeadError, EngineUnreachableError, UtilityCallError, UtilityTimeoutError: the
                first that fails; those before it have done it.
        """
        return {
            engine_id: await self.call(engine_id, call, timeout_s=timeout_s, context=context)
            for engine_id in self.live_engine_ids
        }

    @property
    def live_engine_ids(self) -> tuple[str, ...]:
        """Engines of which an epoch is expected."""
        return tuple(id_ for id_ in self.engine_ids if id_ in self._epochs)

    def _drop_collector(self, request_id: str) -> RequestOutputCollector | None:
        engine_id = self._placed.pop(request_id, None)
        if engine_id is not None:
            self.load[engine_id] -= 1
        return super()._drop_collector(request_id)


class DPLBAsyncMPClient(DPAsyncMPClient):
    """A client that balances by itself: by what is in flight, and by known prefixes.

    Its arguments are those of `DPAsyncMPClient`.
    """

    def __init__(
        self,
        name: str,
        epoch: int,
        run_dir: Path,
        engine_ids: Sequence[str],
        *,
        on_message: OnMessage,
        on_hop: Callable[[HopRecord], None],
    ) -> None:
        super().__init__(name, epoch, run_dir, engine_ids, on_message=on_message, on_hop=on_hop)
        self._balancer: Balancer[tuple[str, int]] = Balancer()

    def add_request(
        self, engine_id: str, request: AddRequest, context: TraceContext, *, external_id: str
    ) -> RequestOutputCollector:
        """Send a request; `ANY_ENGINE` lets this client choose among the live ones.

        Raises:
            EngineUnreachableError, EngineDeadError, ValueError: see `DPAsyncMPClient`.
        """
        prefix = prefix_hashes(
            request.prompt_token_ids, adapter=request.adapter, cache_salt=request.cache_salt
        )
        candidates = [engine_id] if engine_id != ANY_ENGINE else list(self.live_engine_ids)
        while True:
            chosen = self._choose(candidates, prefix)
            try:
                collector = super().add_request(chosen, request, context, external_id=external_id)
            except EngineUnreachableError:
                if len(candidates) == 1:
                    raise
                candidates.remove(chosen)
            else:
                self._balancer.note((chosen, collector.epoch), prefix)
                return collector

    def _choose(self, candidates: Sequence[str], prefix: tuple[bytes, ...]) -> str:
        if len(candidates) == 1:
            return candidates[0]
        live = [(id_, self._epochs[id_]) for id_ in candidates]
        if not live:
            raise EngineDeadError(", ".join(self.engine_ids), 0, "no engine is alive")
        load = {each: self.load[each[0]] for each in live}
        return self._balancer.choose(live, load, prefix)[0]
