"""The real server as a source of frames: an event stream that resumes where it broke."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from appliance.supervisor.admin.schemas import (
    AbortAnswer,
    AdapterRow,
    EngineRow,
    GatewayRow,
    JournalEvent,
    LoadAdapterBody,
    Operation,
    RequestRow,
    SleepBody,
    Snapshot,
    Stats,
    SystemInfo,
    Trace,
)
from dashboard.client.api import AdminApi, Endpoint
from dashboard.client.problems import ApiProblem, UnreachableError
from dashboard.client.prompt import PromptAnswer, data_endpoint, try_prompt
from dashboard.client.sse import Backoff, ServerEvent
from dashboard.source.frames import Alive, Frame, Gap, History, Link
from dashboard.source.insight import Insight

logger = logging.getLogger(__name__)

_KINDS: Final[Mapping[str, TypeAdapter[Any]]] = {
    "snapshot": TypeAdapter(Snapshot),
    "engine": TypeAdapter(EngineRow | list[EngineRow]),
    "gateway": TypeAdapter(GatewayRow | list[GatewayRow]),
    "adapter": TypeAdapter(AdapterRow | list[AdapterRow]),
    "request": TypeAdapter(RequestRow | list[RequestRow]),
    "operation": TypeAdapter(Operation | list[Operation]),
    "stats": TypeAdapter(Stats),
    "event": TypeAdapter(JournalEvent | list[JournalEvent]),
}


def frames_of(event: ServerEvent) -> Iterator[Frame]:
    """Translate one event. Kinds that a newer server adds count only as a sign of life."""
    if event.name == "gap":
        yield Gap()
        return
    adapter = _KINDS.get(event.name)
    if adapter is None:
        yield Alive()
        return
    try:
        body = adapter.validate_json(event.data)
    except ValidationError:
        logger.warning("an event of kind %s does not fit its schema", event.name)
        yield Gap()
        return
    yield from body if isinstance(body, list) else (body,)


Locate = Callable[[], str | None]


class LiveSource:
    """Frames and verbs of a running instance.

    Args:
        endpoint: The control plane.
        inference_key: For `try_prompt` when the instance is not on this machine's socket.
        backoff: Waits between connection attempts.
        locate: Returns the socket of the instance as it runs now, if it does: one that was started
            anew listens on another.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        inference_key: str | None = None,
        backoff: Backoff | None = None,
        locate: Locate | None = None,
    ) -> None:
        self._locate = locate
        self._api = AdminApi(endpoint)
        self._endpoint = endpoint
        self._inference_key = inference_key
        self._backoff = backoff or Backoff()
        self._last_id: str | None = None
        self._heard = False

    @property
    def label(self) -> str:
        """The address that was given."""
        return self._endpoint.label

    @property
    def insight(self) -> Insight:
        """The routes that explain the instance."""
        return self._api.insight

    async def frames(self) -> AsyncIterator[Frame]:
        """Yield frames for ever; a broken line is said once and mended with growing waits."""
        while True:
            self._heard = False
            try:
                async for frame in self._connection():
                    yield frame
            except (ApiProblem, UnreachableError) as error:
                yield Link(connected=False, reason=_reason(error))
            if not self._heard:
                self._last_id = None  # a server that was away may be another one: start afresh
            await asyncio.sleep(self._backoff.next_s())
            await self._follow()

    async def _follow(self) -> None:
        """Turn to the instance's present socket."""
        path = self._locate() if self._locate else None
        if path is None or path == self._endpoint.socket_path:
            return
        before, self._endpoint = self._api, Endpoint(socket_path=path)
        self._api = AdminApi(self._endpoint)
        self._last_id = None
        await before.aclose()

    async def _connection(self) -> AsyncIterator[Frame]:
        async for event in self._api.events(self._last_id):
            self._heard = True
            if not event.name:
                yield Alive()
                continue
            self._backoff.reset()
            for frame in frames_of(event):
                yield frame
            if event.name == "snapshot":
                async for frame in self._background():
                    yield frame
            if event.id is not None:
                self._last_id = event.id
            yield Link(connected=True)

    async def _background(self) -> AsyncIterator[Frame]:
        """What a snapshot lacks; without it the screen only knows less."""
        try:
            yield await self._api.whoami()
            yield await self._api.system()
            yield History(tuple(await self._api.requests()))
        except (ApiProblem, UnreachableError) as error:
            logger.info("background facts are missing: %s", error)

    async def trace(self, request_id: str) -> Trace:
        """The spans of one request."""
        return await self._api.trace(request_id)

    async def sleep(self, engine_id: str, body: SleepBody) -> Operation:
        """Begin to put an engine to sleep."""
        return await self._api.sleep(engine_id, body)

    async def wake(self, engine_id: str) -> Operation:
        """Begin to wake an engine."""
        return await self._api.wake(engine_id)

    async def restart(self, engine_id: str) -> Operation:
        """Begin to restart an engine."""
        return await self._api.restart(engine_id)

    async def load_adapter(self, name: str, body: LoadAdapterBody) -> Operation:
        """Begin to load an adapter."""
        return await self._api.load_adapter(name, body)

    async def unload_adapter(self, name: str) -> Operation:
        """Begin to unload an adapter."""
        return await self._api.unload_adapter(name)

    async def pin_adapter(self, name: str, *, pinned: bool) -> Operation:
        """Begin to pin or unpin an adapter."""
        return await self._api.pin_adapter(name, pinned=pinned)

    async def operation(self, operation_id: str, wait_s: float) -> Operation:
        """The operation, at its end or after `wait_s`."""
        return await self._api.operation(operation_id, wait_s)

    async def abort(self, request_id: str) -> AbortAnswer:
        """End a live request."""
        return await self._api.abort(request_id)

    async def try_prompt(self, model: str, prompt: str) -> PromptAnswer:
        """Send a prompt over the data plane's socket, or to its address with the inference key."""
        system: SystemInfo = await self._api.system()
        local = self._endpoint.socket_path is not None
        endpoint = data_endpoint(system, local=local, inference_key=self._inference_key)
        return await try_prompt(endpoint, model, prompt)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._api.aclose()


def _reason(error: ApiProblem | UnreachableError) -> str:
    if isinstance(error, ApiProblem):
        return f"{error} ({error.code})"
    return str(error)
