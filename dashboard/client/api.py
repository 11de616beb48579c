"""The admin REST API as typed calls, over the unix socket or over TCP with a key."""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

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
from dashboard.client.problems import UnreachableError, problem_of
from dashboard.client.sse import EventParser, EventTooLargeError, ServerEvent

PREFIX: Final = "/admin/v1"
REQUEST_TIMEOUT_S: Final = 10.0
STREAM_SILENCE_S: Final = 60.0
"""A stream that is silent for so long, comments included, is taken for dead."""

ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the control plane listens: a unix socket, or an address and a key."""

    socket_path: str | None = None
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)

    @property
    def label(self) -> str:
        """Short name for the top line."""
        if self.base_url:
            return httpx.URL(self.base_url).netloc.decode("ascii", "replace")
        return self.socket_path or "nowhere"


def open_client(endpoint: Endpoint) -> httpx.AsyncClient:
    """Return a client for `endpoint`. Proxies of the environment are not used: keys stay here."""
    timeout = httpx.Timeout(REQUEST_TIMEOUT_S)
    if endpoint.socket_path:
        transport = httpx.AsyncHTTPTransport(uds=endpoint.socket_path)
        return httpx.AsyncClient(transport=transport, base_url="http://local", timeout=timeout)
    headers = {"authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    base_url = endpoint.base_url or ""
    verify = ssl.create_default_context() if base_url.startswith("https:") else True
    return httpx.AsyncClient(
        base_url=base_url, headers=headers, timeout=timeout, trust_env=False, verify=verify
    )


class AdminApi:
    """One method a route.

    Every method raises `ApiProblem` when the server refuses and `UnreachableError` when there is
    no sensible answer.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._http = open_client(endpoint)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def engines(self) -> list[EngineRow]:
        """All engines."""
        return (await self._get("/engines", Collection[EngineRow])).items

    async def requests(self, limit: int = 200) -> list[RequestRow]:
        """Live requests, then ended ones, newest first."""
        path = f"/requests?limit={limit}"
        return (await self._get(path, Collection[RequestRow])).items

    async def stats(self) -> Stats:
        """The current frame of statistics."""
        return await self._get("/stats", Stats)

    async def system(self) -> SystemInfo:
        """Facts of the instance."""
        return await self._get("/system", SystemInfo)

    async def whoami(self) -> WhoAmI:
        """As whom the instance sees us."""
        return await self._get("/whoami", WhoAmI)

    async def trace(self, request_id: str) -> Trace:
        """All spans of one request."""
        return await self._get(f"/traces/{_part(request_id)}", Trace)

    async def operation(self, operation_id: str, wait_s: float) -> Operation:
        """The operation, at its end or after `wait_s`."""
        path = f"/operations/{_part(operation_id)}?wait={wait_s:g}"
        return await self._call("GET", path, Operation, timeout_s=wait_s + REQUEST_TIMEOUT_S)

    async def sleep(self, engine_id: str, body: SleepBody) -> Operation:
        """Begin to put an engine to sleep."""
        path = f"/engines/{_part(engine_id)}/sleep"
        return await self._call("POST", path, Operation, json=body.model_dump())

    async def wake(self, engine_id: str) -> Operation:
        """Begin to wake an engine."""
        return await self._call("POST", f"/engines/{_part(engine_id)}/wake", Operation)

    async def restart(self, engine_id: str) -> Operation:
        """Begin to restart an engine."""
        return await self._call("POST", f"/engines/{_part(engine_id)}/restart", Operation)

    async def load_adapter(self, name: str, body: LoadAdapterBody) -> Operation:
        """Begin to load an adapter."""
        path = f"/adapters/{_part(name)}"
        return await self._call("PUT", path, Operation, json=body.model_dump())

    async def unload_adapter(self, name: str) -> Operation:
        """Begin to unload an adapter."""
        return await self._call("DELETE", f"/adapters/{_part(name)}", Operation)

    async def pin_adapter(self, name: str, *, pinned: bool) -> Operation:
        """Begin to pin or unpin an adapter."""
        verb = "pin" if pinned else "unpin"
        return await self._call("POST", f"/adapters/{_part(name)}/{verb}", Operation)

    async def abort(self, request_id: str) -> AbortAnswer:
        """End a live request; answered once that is confirmed."""
        return await self._call("DELETE", f"/requests/{_part(request_id)}", AbortAnswer)

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
        request = self._http.build_request(
            "GET",
            f"{PREFIX}/events/stream",
            headers=headers,
            timeout=httpx.Timeout(REQUEST_TIMEOUT_S, read=STREAM_SILENCE_S),
        )
        try:
            response = await self._http.send(request, stream=True)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        try:
            if not response.is_success:
                await response.aread()
                raise problem_of(response)
            yield response
        finally:
            await response.aclose()

    def _unreachable(self, error: httpx.HTTPError) -> UnreachableError:
        reason = str(error) or type(error).__name__
        return UnreachableError(f"cannot reach {self.endpoint.label}: {reason}")

    async def _get(self, path: str, model: type[ModelT]) -> ModelT:
        return await self._call("GET", path, model)

    async def _call(
        self,
        method: str,
        path: str,
        model: type[ModelT],
        *,
        json: dict[str, Any] | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> ModelT:
        try:
            response = await self._http.request(
                method, PREFIX + path, json=json, timeout=httpx.Timeout(timeout_s)
            )
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if not response.is_success:
            raise problem_of(response)
        try:
            return model.model_validate_json(response.content)
        except ValidationError as error:
            raise UnreachableError(f"{path} answered something else than {model}") from error


def _part(name: str) -> str:
    return quote(name, safe="")
