"""HTTP calls of the admin API: one client, every failure as a problem or as "unreachable"."""

import ssl
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from dashboard.client.problems import UnreachableError, problem_of

PREFIX: Final = "/admin/v1"
REQUEST_TIMEOUT_S: Final = 10.0

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


class HttpCalls:
    """Calls of one instance.

    Every method raises `ApiProblem` when the server refuses and `UnreachableError` when there is
    no sensible answer.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.http = open_client(endpoint)

    async def aclose(self) -> None:
        """Close all connections."""
        await self.http.aclose()

    def unreachable(self, error: httpx.HTTPError) -> UnreachableError:
        """What to raise for a call that had no answer."""
        reason = str(error) or type(error).__name__
        return UnreachableError(f"cannot reach {self.endpoint.label}: {reason}")

    async def get(
        self, path: str, model: type[ModelT], params: dict[str, str | int | float] | None = None
    ) -> ModelT:
        """Fetch one body."""
        return await self.call("GET", path, model, params=params)

    async def call(
        self,
        method: str,
        path: str,
        model: type[ModelT],
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        **content: Any,
    ) -> ModelT:
        """Send a request; `content` is httpx's `json` and `params`."""
        try:
            response = await self.http.request(
                method, PREFIX + path, timeout=httpx.Timeout(timeout_s), **content
            )
        except httpx.HTTPError as error:
            raise self.unreachable(error) from error
        if not response.is_success:
            raise problem_of(response)
        try:
            return model.model_validate_json(response.content)
        except ValidationError as error:
            raise UnreachableError(f"{path} answered something else than {model}") from error


def part(name: str) -> str:
    """`name` as one segment of a path."""
    return quote(name, safe="")
