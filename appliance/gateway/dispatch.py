"""Finds an engine for a choice and sends it there, waiting for one that starts or wakes."""

from collections.abc import Generator
from contextlib import contextmanager

from appliance.control_link.messages import EngineRoute
from appliance.gateway.data_plane import DataPlane
from appliance.gateway.fleet import READY, Asleep, Decision, Dispatch, Hold, Unavailable
from appliance.gateway.journey import Journey
from appliance.gateway.openai.errors import ApiError, model_not_found
from engine.client.balance import prefix_hashes
from engine.client.collector import RequestOutputCollector
from engine.client.core_client import EngineDeadError, EngineUnreachableError
from engine.clock import now_ns
from engine.wire.messages import AddRequest

REACHABLE_TIMEOUT_S = 1.0
WAKE_AGAIN_S = 5.0
MIN_ENGINES = 2
"""Fewer leave nothing to balance."""
LOOK_AGAIN_S = 0.5
"""A held request looks at the fleet this often even when the supervisor says nothing."""
UNKNOWN_RETRY_AFTER_S = 30.0
UNCLEAR = "unclear"
"""It takes nothing: what for shows in its next state."""
HELD_FOR = {"waking": "waking", "draining": UNCLEAR, "backoff": "backoff"}
"""By the state of the engine that is waited for."""


class Dispatcher:
    """Sends one choice to an engine, as often as it takes.

    Args:
        plane: What all requests share.
        journey: Of the request; the time that it is held is written there.
    """

    def __init__(self, plane: DataPlane, journey: Journey) -> None:
        self._plane = plane
        self._journey = journey
        self._wake_again_ns = 0

    async def send(self, request: AddRequest) -> RequestOutputCollector:
        """Send the request to a ready engine, once there is one: see `Fleet.choose`.

        Raises:
            ApiError: there is none and none will come, or none came in time.
        """
        deadline_ns = now_ns() + int(self._plane.hold_s * 1e9)
        prefix = self._prefix_of(request)
        while True:
            decision = self._plane.fleet.choose(self._journey.model or "", prefix)
            if isinstance(decision, Dispatch):
                collector = await self._send(decision.route, request)
                if collector is not None:
                    self._plane.fleet.note_sent(decision.route, prefix)
                    return collector
            else:
                await self._wait(decision, deadline_ns)

    async def know_context(self) -> int:
        """Return the model's context length, waiting for its first engine to have said it.

        Raises:
            ApiError: as `send`.
        """
        deadline_ns = now_ns() + int(self._plane.hold_s * 1e9)
        model = self._journey.model or ""
        while (limit := self._plane.fleet.max_model_len(model)) is None:
            await self._wait(self._plane.fleet.choose(model), deadline_ns)
        return limit

    async def _wait(self, decision: Decision, deadline_ns: int) -> None:
        """Wait for news of the fleet; a sleeping engine is woken first."""
        match decision:
            case Unavailable():
                if not self._plane.fleet.routes(self._journey.model or ""):
                    raise model_not_found()  # its adapter was unloaded while it waited
                raise unavailable(decision)
            case Asleep(route):
                refuse_if_asleep(self._plane, route)
                self._wake(route)
            case Hold() | Dispatch():
                pass
        remaining_s = (deadline_ns - now_ns()) / 1e9
        if remaining_s <= 0:
            raise not_in_time(decision)
        with held(self._journey, self._held_for(decision)):
            await self._plane.fleet.wait_change(min(remaining_s, LOOK_AGAIN_S))

    def _held_for(self, decision: Decision) -> str:
        """Say what a request waits for, in the words of `RequestRecord.held_for`."""
        route = decision.route
        if isinstance(decision, Asleep) or route is None:
            return "asleep"
        if route.state != READY:
            return HELD_FOR.get(route.state, "starting")
        adapter = self._plane.fleet.adapter(self._journey.model or "")
        if adapter is not None and adapter.name not in route.adapters:
            return "adapter"
        return "backoff" if self._plane.fleet.is_dead(route) else "asleep"

    def _prefix_of(self, request: AddRequest) -> tuple[bytes, ...]:
        """Return what engines may know of the prompt; nothing when there is no choice."""
        if len(self._plane.fleet.routes(self._journey.model or "")) < MIN_ENGINES:
            return ()
        return prefix_hashes(
            request.prompt_token_ids, adapter=request.adapter, cache_salt=request.cache_salt
        )

    def _wake(self, route: EngineRoute) -> None:
        if now_ns() >= self._wake_again_ns:
            self._plane.wake_engine(route.engine_id, self._journey.context.request_id)
            self._wake_again_ns = now_ns() + int(WAKE_AGAIN_S * 1e9)

    async def _send(self, route: EngineRoute, request: AddRequest) -> RequestOutputCollector | None:
        """Send to a ready engine; None when it cannot be reached (yet)."""
        assert self._journey.chat is not None
        try:
            return self._plane.client.add_request(
                route.engine_id,
                request,
                self._journey.chat,
                external_id=self._journey.context.request_id,
            )
        except EngineDeadError:
            self._plane.fleet.mark_dead(route.engine_id, route.epoch)
        except EngineUnreachableError:
            await self._wait_reachable(route)
        return None

    async def _wait_reachable(self, route: EngineRoute) -> None:
        """Its socket is not there yet, or its queue is full."""
        with held(self._journey, UNCLEAR):
            if await self._plane.client.wait_reachable(route.engine_id, REACHABLE_TIMEOUT_S):
                return
            await self._plane.fleet.wait_change(LOOK_AGAIN_S)


@contextmanager
def held(journey: Journey, reason: str) -> Generator[None]:
    """Count the time inside as held; the first reason that says something is kept."""
    start_ns = now_ns()
    journey.is_held = True
    if journey.held_for in (None, UNCLEAR):
        journey.held_for = reason
    try:
        yield
    finally:
        journey.is_held = False
        journey.held_ns += now_ns() - start_ns


def refuse_if_asleep(plane: DataPlane, route: EngineRoute) -> None:
    """Raise ApiError when requests may not wake an engine."""
    state = plane.fleet.state
    if state is not None and state.on_asleep == "reject":
        message = "The engine that serves this model is asleep."
        raise ApiError("engine_asleep", message, retry_after_s=route.retry_after_s)


def unavailable(decision: Unavailable) -> ApiError:
    """The refusal when no engine serves a model and none will by itself."""
    message = "No engine is available for this model; its operator has to act."
    return ApiError("server_overloaded", message, retry_after_s=_retry_after_s(decision))


def not_in_time(decision: Decision) -> ApiError:
    """The refusal when the wait for an engine took too long."""
    message = "No engine became ready in time."
    return ApiError("server_overloaded", message, retry_after_s=_retry_after_s(decision))


def _retry_after_s(decision: Decision) -> float:
    return decision.route.retry_after_s if decision.route else UNKNOWN_RETRY_AFTER_S
