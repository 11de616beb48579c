"""The admin API for commands: calls, waiting for operations, and problems as exit codes."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from appliance.cli.exits import CliError, Exit
from appliance.supervisor.admin.schemas import (
    AbortAnswer,
    AdapterRow,
    Collection,
    CreatedKey,
    EngineRow,
    KeyRow,
    Operation,
    Problem,
    RequestRow,
    SystemInfo,
    Trace,
)

API = "/admin/v1"
_CONNECT_S = 5.0
_READ_S = 60.0
_POLL_S = 1.0
_ENDED = frozenset({"done", "failed", "canceled"})

ModelT = TypeVar("ModelT", bound=BaseModel)

_EXITS: Mapping[int, Exit] = {
    400: Exit.USAGE,
    401: Exit.NO_ACCESS,
    403: Exit.NO_ACCESS,
    408: Exit.TIMEOUT,
    409: Exit.CONFLICT,
    415: Exit.USAGE,
    422: Exit.USAGE,
    504: Exit.TIMEOUT,
}


_LISTED_BY: Mapping[str, str] = {
    "adapters": "`quarterdeck lora list` lists the adapters.",
    "engines": "`quarterdeck ps` lists the engines.",
    "keys": "`quarterdeck keys list` lists the keys.",
    "requests": "`quarterdeck requests` lists the requests.",
    "traces": "`quarterdeck requests` lists the requests; old traces are dropped.",
}
"""Hints for names that do not exist, by collection."""


_TRUST_HINT = "SSL_CERT_FILE=FILE in the environment names a certificate to trust."
_WRONG_SERVER_HINT = "Is that the control plane's address? Its port is 8001 by default."


class NoSuchThingError(CliError):
    """404: what the command names does not exist."""


class AdminClient:
    """Calls of the admin API. Every method raises `CliError` with the exit code that fits."""

    def __init__(self, http: httpx.Client, where: str) -> None:
        self._http = http
        self._where = where

    def __enter__(self) -> "AdminClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def engines(self) -> list[EngineRow]:
        """All engines."""
        return self._call("GET", "/engines", Collection[EngineRow]).items

    def verb(self, engine_id: str, verb: str, body: Mapping[str, Any] | None = None) -> Operation:
        """Begin `sleep`, `wake` or `restart`."""
        return self._call("POST", f"/engines/{_segment(engine_id)}/{verb}", Operation, json=body)

    def finish(
        self, begun: Operation, timeout_s: float, watch: Callable[[Operation], None]
    ) -> Operation:
        """Return the operation once it has ended; `watch` sees it about once a second until then.

        Raises:
            CliError: 4, it still runs after `timeout_s`; 1, it failed.
        """
        deadline_s = time.monotonic() + timeout_s
        operation = begun
        while operation.state not in _ENDED:
            watch(operation)
            if time.monotonic() >= deadline_s:
                hint = f"It goes on: {API}/operations/{operation.id}"
                message = f"{_named(operation)} still runs after {timeout_s:g} s"
                raise CliError(message, Exit.TIMEOUT, hint)
            wait_s = min(_POLL_S, max(deadline_s - time.monotonic(), 0.05))
            params = {"wait": wait_s}
            path = f"/operations/{_segment(operation.id)}"
            operation = self._call("GET", path, Operation, params=params)
        if operation.state != "done":
            raise CliError(f"{_named(operation)} {operation.state}: {operation.error}")
        return operation

    def adapters(self) -> list[AdapterRow]:
        """All LoRA adapters."""
        return self._call("GET", "/adapters", Collection[AdapterRow]).items

    def load_adapter(
        self, name: str, path: str, *, pinned: bool | None, model: str | None
    ) -> Operation:
        """Begin to load an adapter."""
        body = {"path": path, "pinned": pinned, "model": model}
        return self._call("PUT", f"/adapters/{_segment(name)}", Operation, json=body)

    def unload_adapter(self, name: str) -> Operation:
        """Begin to unload an adapter."""
        return self._call("DELETE", f"/adapters/{_segment(name)}", Operation)

    def pin_adapter(self, name: str, verb: str) -> Operation:
        """Begin to `pin` or `unpin` an adapter."""
        return self._call("POST", f"/adapters/{_segment(name)}/{verb}", Operation)

    def requests(self, state: str | None, limit: int) -> list[RequestRow]:
        """Live requests, then ended ones."""
        params = {"limit": limit} | ({"state": state} if state else {})
        return self._call("GET", "/requests", Collection[RequestRow], params=params).items

    def abort(self, request_id: str) -> AbortAnswer:
        """End a live request; returns once that is confirmed."""
        return self._call("DELETE", f"/requests/{_segment(request_id)}", AbortAnswer)

    def trace(self, request_id: str) -> Trace:
        """The spans of one request. Raises `NoSuchThingError`."""
        return self._call("GET", f"/traces/{_segment(request_id)}", Trace)

    def keys(self) -> list[KeyRow]:
        """All keys."""
        return self._call("GET", "/keys", Collection[KeyRow]).items

    def create_key(self, name: str, scope: str, expires_in_s: float | None) -> CreatedKey:
        """Mint a key."""
        body = {"name": name, "scope": scope, "expires_in_s": expires_in_s}
        return self._call("POST", "/keys", CreatedKey, json=body)

    def revoke_key(self, key_id: str) -> KeyRow:
        """Make a key useless."""
        return self._call("DELETE", f"/keys/{_segment(key_id)}", KeyRow)

    def system(self) -> SystemInfo:
        """Facts of the instance."""
        return self._call("GET", "/system", SystemInfo)

    def _call(self, method: str, path: str, shape: type[ModelT], **content: Any) -> ModelT:
        try:
            answer = self._http.request(method, API + path, **content)
        except httpx.ConnectError as error:
            message = f"cannot reach the appliance at {self._where}: {error}"
            hint = _TRUST_HINT if "CERTIFICATE_VERIFY" in str(error) else None
            raise CliError(message, Exit.NO_ACCESS, hint) from error
        except httpx.TimeoutException as error:
            raise CliError(f"{self._where} did not answer in time", Exit.TIMEOUT) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            message = f"the connection to {self._where} failed: {error}"
            raise CliError(message, Exit.NO_ACCESS) from error
        if not answer.is_success:
            raise _error_of(answer)
        try:
            return shape.model_validate_json(answer.content)
        except ValidationError as error:
            message = f"{self._where} does not answer like an appliance"
            raise CliError(message, hint=_WRONG_SERVER_HINT) from error


def over_socket(path: Path) -> AdminClient:
    """Talk to the appliance of this user over its unix socket; no key is needed."""
    transport = httpx.HTTPTransport(uds=str(path))
    return AdminClient(_client("http://localhost", {}, transport), str(path))


def over_url(url: str, key: str | None) -> AdminClient:
    """Talk to a control plane over TCP. `SSL_CERT_FILE` may name the certificate to trust."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    try:
        transport = httpx.HTTPTransport(verify=_tls_trust() if url.startswith("https") else False)
        return AdminClient(_client(url.rstrip("/"), headers, transport), url)
    except (OSError, httpx.InvalidURL) as error:
        raise CliError(f"cannot use {url}: {error}", Exit.USAGE) from error


def _client(
    base_url: str, headers: Mapping[str, str], transport: httpx.HTTPTransport
) -> httpx.Client:
    timeout = httpx.Timeout(_READ_S, connect=_CONNECT_S)
    return httpx.Client(
        base_url=base_url,
        headers=dict(headers),
        transport=transport,
        timeout=timeout,
        trust_env=False,  # a proxy has no business with an admin key
    )


def _tls_trust() -> Any:
    import ssl

    return ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE"))


def _error_of(answer: httpx.Response) -> CliError:
    code = _EXITS.get(answer.status_code, Exit.FAILED)
    try:
        found = Problem.model_validate_json(answer.content)
    except ValidationError:
        return CliError(f"the server answered {answer.status_code}", code, _WRONG_SERVER_HINT)
    if found.code != "not_found":
        return CliError(found.detail or found.title, code, found.hint)
    collection = answer.request.url.path.removeprefix(f"{API}/").partition("/")[0]
    return NoSuchThingError(found.detail or found.title, code, _LISTED_BY.get(collection))


def _segment(text: str) -> str:
    """Return `text` as one segment of a path, whatever it holds."""
    from urllib.parse import quote

    return quote(text, safe="") or "%20"


def _named(operation: Operation) -> str:
    return f"{operation.kind} of {operation.target} ({operation.id})"
