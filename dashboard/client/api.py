"""The admin REST API as typed calls, over the unix socket or over TCP with a key."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx

from appliance.supervisor.admin.schemas import (
    AbortAnswer,
    Collection,
    EngineRow,
    LoadAdapterBody,
    Operation,
    RequestRow,
    SleepBody,
    Stats,
    SystemInfo,
    Trace,
    WhoAmI,
)
from dashboard.client.calls import PREFIX, REQUEST_TIMEOUT_S, HttpCalls, part
from dashboard.client.calls import Endpoint as Endpoint
from dashboard.client.insight import InsightApi
from dashboard.client.problems import UnreachableError, problem_of
from dashboard.client.sse import EventParser, EventTooLargeError, ServerEvent

STREAM_SILENCE_S: Final = 60.0
"""A stream that is silent for so long, comments included, is taken for dead."""


class AdminApi:
    """One method a route.

    Every method raises `ApiProblem` when the server refuses and `UnreachableError` when there is
    no sensible answer.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._calls = HttpCalls(endpoint)
        self.insight = InsightApi(self._calls)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._calls.aclose()

    async def engines(self) -> list[EngineRow]:
        """All engines."""
        return (await self._calls.get("/engines", Collection[EngineRow])).items

    async def requests(self, limit: int = 200) -> list[RequestRow]:
        """Live requests, then ended ones, newest first."""
        path = f"/requests?limit={limit}"
        return (await self._calls.get(path, Collection[RequestRow])).items

    async def stats(self) -> Stats:
        """The current frame of statistics."""
        return await self._calls.get("/stats", Stats)

    async def system(self) -> SystemInfo:
        """Facts of the instance."""
        return await self._calls.get("/system", SystemInfo)

    async def whoami(self) -> WhoAmI:
        """As whom the instance sees us."""
        return await self._calls.get("/whoami", WhoAmI)

    async def trace(self, request_id: str) -> Trace:
        """All spans of one request."""
        return await self._calls.get(f"/traces/{part(request_id)}", Trace)

    async def operation(self, operation_id: str, wait_s: float) -> Operation:
        """The operation, at its end or after `wait_s`."""
        path = f"/operations/{part(operation_id)}?wait={wait_s:g}"
        return await self._calls.call("GET", path, Operation, timeout_s=wait_s + REQUEST_TIMEOUT_S)

    async def sleep(self, engine_id: str, body: SleepBody) -> Operation:
        """Begin to put an engine to sleep."""
        path = f"/engines/{part(engine_id)}/sleep"
        return await self._calls.call("POST", path, Operation, json=body.model_dump())

    async def wake(self, engine_id: str) -> Operation:
        """Begin to wake an engine."""
        return await self._calls.call("POST", f"/engines/{part(engine_id)}/wake", Operation)

    async def restart(self, engine_id: str) -> Operation:
        """Begin to restart an engine."""
        return await self._calls.call("POST", f"/engines/{part(engine_id)}/restart", Operation)

    async def load_adapter(self, name: str, body: LoadAdapterBody) -> Operation:
        """Begin to load an adapter."""
        path = f"/adapters/{part(name)}"
        return await self._calls.call("PUT", path, Operation, json=body.model_dump())

    async def unload_adapter(self, name: str) -> Operation:
        """Begin to unload an adapter."""
        return await self._calls.call("DELETE", f"/adapters/{part(name)}", Operation)

    async def pin_adapter(self, name: str, *, pinned: bool) -> Operation:
        """Begin to pin or unpin an adapter."""
        verb = "pin" if pinned else "unpin"
        return await self._calls.call("POST", f"/adapters/{part(name)}/{verb}", Operation)

    async def abort(self, request_id: str) -> AbortAnswer:
        """End a live request; answered once that is confirmed."""
        return await self._calls.call("DELETE", f"/requests/{part(request_id)}", AbortAnswer)

    async def events(self, last_id: str | None) -> AsyncIterator[ServerEvent]:
        """Yield the event stream until it breaks, which raises `UnreachableError`."""
        parser = EventParser(last_id)
        async with self._open_stream(last_id) as response:
            try:
                async for line in response.aiter_lines():
                    for event in parser.feed(line):
                        yield event
            except (httpx.HTTPError, EventTooLargeError) as error:
                raise UnreachableError(f"the line broke ({type(error).__name__})") from error
        raise UnreachableError("the server closed the event stream")

    @asynccontextmanager
    async def _open_stream(self, last_id: str | None) -> AsyncGenerator[httpx.Response]:
        headers = {"accept": "text/event-stream"}
        if last_id is not None:
            headers["last-event-id"] = last_id
        request = self._calls.http.build_request(
            "GET",
            f"{PREFIX}/events/stream",
            headers=headers,
            timeout=httpx.Timeout(REQUEST_TIMEOUT_S, read=STREAM_SILENCE_S),
        )
        try:
            response = await self._calls.http.send(request, stream=True)
        except httpx.HTTPError as error:
            raise self._calls.unreachable(error) from error
        try:
            if not response.is_success:
                await response.aread()
                raise problem_of(response)
            yield response
        finally:
            await response.aclose()
