"""The gate before the control plane's routes: host, origin, key, scope, body. Pure ASGI.

Which gate a request passes follows from the listener it came in by, never from a header: the TCP
application trusts keys, the one for the unix socket trusts whoever may open the socket.
"""

import logging
import secrets
from collections.abc import Callable, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from appliance.supervisor.admin import schemas
from appliance.supervisor.admin.access import LOCAL, Caller, match, may
from appliance.supervisor.admin.body import ClientGoneError, read_body, replay
from appliance.supervisor.admin.call_note import CallNote, NotedReply
from appliance.supervisor.admin.origin import (
    OriginPolicy,
    checked_host,
    cors_headers,
    header_values,
    preflight_headers,
)
from appliance.supervisor.admin.ports import Insight, KeyStore
from appliance.supervisor.admin.problems import ProblemError, problem, send_problem
from appliance.supervisor.admin.while_allowed import WhileAllowed
from engine.log_lines import about

logger = logging.getLogger(__name__)

_BEARER = b"bearer "
_MAX_KEY_BYTES = 512
_NO_KEY_HINT = "Send Authorization: Bearer KEY; quarterdeck keys create --scope viewer makes one."


class Guard:
    """Lets through what the table of routes allows.

    Args:
        inner: the routes; they find the `Caller` in `request.state`.
        keys: opens the TCP listener; None for the unix socket, where everybody is `local`.
        origins: which hosts and pages are ours; used on TCP only, no browser opens the socket.
        insight: its audit log gets every call that would change something, let through or not;
            its `count_answer` every answer.
    """

    def __init__(
        self, inner: ASGIApp, keys: KeyStore | None, origins: OriginPolicy, insight: Insight
    ) -> None:
        self._inner = inner
        self._keys = keys
        self._origins = origins
        self._insight = insight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})  # uvicorn answers 403

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = f"req-{secrets.token_hex(12)}"
        note = CallNote(scope, request_id, self._insight)
        reply = NotedReply(send, self._extra_headers(scope, request_id), note)
        try:
            with about(request_id, withholds=False):  # there are no prompts here
                await self._answer_noted(scope, receive, reply, note)
        finally:
            note.gone()

    async def _answer_noted(
        self, scope: Scope, receive: Receive, reply: NotedReply, note: CallNote
    ) -> None:
        request_id = note.request_id
        try:
            await self._pass(scope, receive, reply, note)
        except ProblemError as error:
            named = error.problem.model_copy(update={"request_id": request_id})
            await send_problem(reply, named, error.headers)
        except ClientGoneError:
            return
        except Exception:
            logger.exception("%s: %s failed", request_id, scope["method"])
            if reply.is_complete:
                return
            if reply.has_started:
                raise  # cuts the connection, so that nobody takes the answer for complete
            broken = problem(500, "internal_error", hint="The log has the details.")
            await send_problem(reply, broken.model_copy(update={"request_id": request_id}))

    async def _pass(self, scope: Scope, receive: Receive, send: Send, note: CallNote) -> None:
        if self._keys is None:
            checked_host(scope)
        else:
            self._origins.check(scope)
            if self._is_preflight(scope):
                await _send_empty(send)
                return
        found = match(scope["method"], scope["path"])
        caller = LOCAL if self._keys is None else _caller(self._keys, scope)
        note.caller = caller
        if found.scope is not None:
            _authorize(caller, found.scope)
        _check_exists(found.methods, is_known=found.is_known)
        body = note.body = await read_body(scope, receive)
        state = {**scope.get("state", {}), "caller": caller, "request_id": note.request_id}
        inner_scope = {**scope, "root_path": "", "state": state}
        if self._keys is not None and found.scope is not None:
            send = WhileAllowed(send, _permission(self._keys, scope, found.scope))
        await self._inner(inner_scope, replay(body, receive), send)

    def _is_preflight(self, scope: Scope) -> bool:
        return (
            scope["method"] == "OPTIONS"
            and self._origins.allowed_origin(scope) is not None
            and bool(header_values(scope, b"access-control-request-method"))
        )

    def _extra_headers(self, scope: Scope, request_id: str) -> list[tuple[bytes, bytes]]:
        headers = [
            (b"x-request-id", request_id.encode()),
            (b"x-content-type-options", b"nosniff"),
        ]
        origin = self._origins.allowed_origin(scope) if self._keys is not None else None
        if origin is None:
            return headers
        shape = preflight_headers if scope["method"] == "OPTIONS" else cors_headers
        return [*headers, *shape(origin)]


def _caller(keys: KeyStore, scope: Scope) -> Caller | None:
    """Return whom the one `Authorization` header names, None without a valid one."""
    values = header_values(scope, b"authorization")
    if len(values) != 1 or not values[0].lower().startswith(_BEARER):
        return None
    secret = values[0][len(_BEARER) :].strip()
    if not secret or len(secret) > _MAX_KEY_BYTES:
        return None
    key = keys.verify(secret)
    return None if key is None else Caller(actor=key.id, scope=key.scope, key=key)


def _permission(keys: KeyStore, scope: Scope, needed: schemas.Scope) -> Callable[[], bool]:
    """Return the question whether the caller still may: keys are revoked, and expire."""

    def is_allowed() -> bool:
        caller = _caller(keys, scope)
        return caller is not None and may(caller, needed)

    return is_allowed


def _authorize(caller: Caller | None, needed: schemas.Scope) -> None:
    if caller is None:
        found = problem(401, "invalid_key", "a key of the right scope is needed", _NO_KEY_HINT)
        raise ProblemError(found, [(b"www-authenticate", b"Bearer")])
    if not may(caller, needed):
        detail = f"this key has the scope {caller.scope}; {needed} is needed"
        hint = f"quarterdeck keys create --scope {needed} makes one."
        raise ProblemError(problem(403, "scope_too_small", detail, hint))


def _check_exists(methods: Sequence[str], *, is_known: bool) -> None:
    if is_known:
        return
    if not methods:
        raise ProblemError(problem(404, "no_such_route", "there is no such path"))
    allow = ", ".join(methods)
    headers = [(b"allow", allow.encode())]
    raise ProblemError(problem(405, "method_not_allowed", f"allowed is {allow}"), headers)


async def _send_empty(send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})
