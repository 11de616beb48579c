"""The admin API for commands: calls, waiting for operations, and problems as exit codes."""

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from appliance.cli.exits import CliError, Exit
from appliance.supervisor.admin.schemas import (
    AbortAnswer,
    AdapterRow,
    AuditCheck,
    AuditEntry,
    Collection,
    CreatedKey,
    EngineRow,
    Explanation,
    JournalEvent,
    KeyRow,
    LogLine,
    Moment,
    Operation,
    Problem,
    RequestRow,
    Span,
    SystemInfo,
    TelemetrySettings,
    Trace,
    TraceRow,
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
    "profiles": "`quarterdeck profile list` lists the profiles.",
    "requests": "`quarterdeck requests` lists the requests.",
    "traces": "`quarterdeck traces` lists what is stored; old traces are dropped.",
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
        return self._call("POST", f"/engines/{segment(engine_id)}/{verb}", Operation, json=body)

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
            path = f"/operations/{segment(operation.id)}"
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
        return self._call("PUT", f"/adapters/{segment(name)}", Operation, json=body)

    def unload_adapter(self, name: str) -> Operation:
        """Begin to unload an adapter."""
        return self._call("DELETE", f"/adapters/{segment(name)}", Operation)

    def pin_adapter(self, name: str, verb: str) -> Operation:
        """Begin to `pin` or `unpin` an adapter."""
        return self._call("POST", f"/adapters/{segment(name)}/{verb}", Operation)

    def requests(self, state: str | None, limit: int) -> list[RequestRow]:
        """Live requests, then ended ones."""
        params = {"limit": limit} | ({"state": state} if state else {})
        return self._call("GET", "/requests", Collection[RequestRow], params=params).items

    def abort(self, request_id: str) -> AbortAnswer:
        """End a live request; returns once that is confirmed."""
        return self._call("DELETE", f"/requests/{segment(request_id)}", AbortAnswer)

    def trace(self, request_id: str) -> Trace:
        """The spans of one request. Raises `NoSuchThingError`."""
        return self._call("GET", f"/traces/{segment(request_id)}", Trace)

    def explanation(self, request_id: str) -> Explanation:
        """Why a request took as long as it did. Raises `NoSuchThingError`."""
        return self._call("GET", f"/traces/{segment(request_id)}/explanation", Explanation)

    def moment(self, at: datetime, window_s: float) -> Moment:
        """What happened around a point in time."""
        params = {"at": at.astimezone().isoformat(), "window_s": window_s}
        return self._call("GET", "/moment", Moment, params=params)

    def spans(self, name: str) -> list[Span]:
        """A trace of the appliance itself. Raises `NoSuchThingError`."""
        return self.call("GET", f"/spans/{segment(name)}", Collection[Span]).items

    def traces(self, query: Mapping[str, Any]) -> list[TraceRow]:
        """Stored traces that fit the parameters of `GET /traces`."""
        return self._call("GET", "/traces", Collection[TraceRow], params=query).items

    def telemetry(self) -> TelemetrySettings:
        """What is recorded and exported, and what was lost."""
        return self._call("GET", "/telemetry", TelemetrySettings)

    def change_telemetry(self, change: Mapping[str, Any]) -> TelemetrySettings:
        """Change some settings of the telemetry."""
        return self._call("PATCH", "/telemetry", TelemetrySettings, json=change)

    def events(self, query: Mapping[str, Any]) -> list[JournalEvent]:
        """Entries of the journal that fit the parameters of `GET /events`, newest first."""
        return self._call("GET", "/events", Collection[JournalEvent], params=query).items

    def stream(self) -> Iterator[tuple[str, str]]:
        """Yield (event name, JSON) of the event stream until the appliance ends it."""
        try:
            with self._http.stream("GET", f"{API}/events/stream") as answer:
                if not answer.is_success:
                    answer.read()
                    raise _error_of(answer)
                yield from _server_sent(answer.iter_lines())
        except httpx.HTTPError as error:
            message = f"the connection to {self._where} failed: {error}"
            raise CliError(message, Exit.NO_ACCESS) from error

    def keys(self) -> list[KeyRow]:
        """All keys."""
        return self._call("GET", "/keys", Collection[KeyRow]).items

    def create_key(
        self, name: str, scope: str, expires_in_s: float | None, *, allows_content: bool = False
    ) -> CreatedKey:
        """Mint a key."""
        body: dict[str, Any] = {"name": name, "scope": scope, "expires_in_s": expires_in_s}
        if allows_content:  # an older appliance does not know it, and need not
            body["allows_content"] = True
        return self._call("POST", "/keys", CreatedKey, json=body)

    def revoke_key(self, key_id: str) -> KeyRow:
        """Make a key useless."""
        return self._call("DELETE", f"/keys/{segment(key_id)}", KeyRow)

    def logs(
        self,
        *,
        process: str | None = None,
        level: str | None = None,
        contains: str | None = None,
        after: int | None = None,
        limit: int = 100,
    ) -> list[LogLine]:
        """The newest lines that fit, oldest first; after an id, the first ones that follow it."""
        wanted = {"process": process, "level": level, "contains": contains, "after": after}
        params = {name: value for name, value in wanted.items() if value is not None}
        params["limit"] = limit
        return self._call("GET", "/logs", Collection[LogLine], params=params).items

    def audit(self, limit: int) -> list[AuditEntry]:
        """Entries of the audit log, newest first."""
        return self._call("GET", "/audit", Collection[AuditEntry], params={"limit": limit}).items

    def audit_check(self) -> AuditCheck:
        """Whether the audit log is whole."""
        return self._call("GET", "/audit/verify", AuditCheck)

    def system(self) -> SystemInfo:
        """Facts of the instance."""
        return self._call("GET", "/system", SystemInfo)

    def download(self, path: str, target: Path) -> None:
        """Write what a GET answers into a file, which appears when it is complete."""
        fresh = target.with_name(f".{target.name}.part")
        try:
            with self._reaching(), self._http.stream("GET", API + path) as answer:
                if not answer.is_success:
                    answer.read()
                    raise _error_of(answer)
                with fresh.open("wb") as file:
                    for chunk in answer.iter_bytes():
                        file.write(chunk)
            fresh.replace(target)
        except OSError as error:
            raise CliError(f"cannot write {target}: {error.strerror}") from error
        finally:
            fresh.unlink(missing_ok=True)

    def call(self, method: str, path: str, shape: type[ModelT], **content: Any) -> ModelT:
        """One call whose answer has this shape; `path` begins after the API's prefix."""
        return self._call(method, path, shape, **content)

    @contextmanager
    def _reaching(self) -> Generator[None]:
        """Map what a connection raises. Raises CliError."""
        try:
            yield
        except httpx.ConnectError as error:
            message = f"cannot reach the appliance at {self._where}: {error}"
            hint = _TRUST_HINT if "CERTIFICATE_VERIFY" in str(error) else None
            raise CliError(message, Exit.NO_ACCESS, hint) from error
        except httpx.TimeoutException as error:
            raise CliError(f"{self._where} did not answer in time", Exit.TIMEOUT) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            message = f"the connection to {self._where} failed: {error}"
            raise CliError(message, Exit.NO_ACCESS) from error

    def _call(self, method: str, path: str, shape: type[ModelT], **content: Any) -> ModelT:
        with self._reaching():
            answer = self._http.request(method, API + path, **content)
        if not answer.is_success:
            raise _error_of(answer)
        try:
            return shape.model_validate_json(answer.content)
        except ValidationError as error:
            message = f"{self._where} does not answer like an appliance"
            raise CliError(message, hint=_WRONG_SERVER_HINT) from error


def _server_sent(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Read Server-Sent Events: an empty line ends each."""
    name, text = "", list[str]()
    for line in lines:
        field, _, value = line.partition(": ")
        if not line and text:
            yield name, "\n".join(text)
            name, text = "", []
        elif field == "event":
            name = value
        elif field == "data":
            text.append(value)


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
    collection, _, name = answer.request.url.path.removeprefix(f"{API}/").partition("/")
    missing = collection if name else "engines"  # what a new thing, such as a profile, is for
    return NoSuchThingError(found.detail or found.title, code, _LISTED_BY.get(missing))


def segment(text: str) -> str:
    """Return `text` as one segment of a path, whatever it holds."""
    from urllib.parse import quote

    return quote(text, safe="") or "%20"


def _named(operation: Operation) -> str:
    return f"{operation.kind} of {operation.target} ({operation.id})"
