"""What the guard notes of a call: for the audit log, and for the count of answers."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final, cast

from starlette.types import Message, Scope, Send

from appliance.supervisor.admin.access import Caller, match
from appliance.supervisor.admin.ports import Insight, NewAuditEntry
from engine.log_lines import escape, redact

ANONYMOUS: Final = "anonymous"
OTHER_ROUTE: Final = "other"
READING: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods that change nothing; calls of any other are audited, allowed or not."""
GONE: Final = 499
"""Status of a call whose client hung up before it had an answer."""
MAX_METHOD_CHARS: Final = 16
MAX_TARGET_CHARS: Final = 200
MAX_ANSWER_BYTES: Final = 64 << 10
OPERATION_HEADER: Final = b"x-operation-id"
"""In the answers of the routes that look like vLLM's: one id, or several."""


class CallNote:
    """One call, as far as it has come.

    Args:
        scope: Of the call.
        request_id: Ours, in its answer.
        insight: Gets the entry of a call that would change something, and counts the answer.
    """

    def __init__(self, scope: Scope, request_id: str, insight: Insight) -> None:
        self.request_id = request_id
        self.caller: Caller | None = None
        self.body: bytes | None = None
        self._method: str = scope["method"]
        self.is_audited = self._method not in READING
        self._path: str = scope["path"]
        self._template = match(self._method, self._path).template
        client = scope.get("client")
        self._source: str | None = client[0] if client and client[0] else None
        self._insight = insight
        self._is_told = False

    def answered(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """The answer is known, and not sent yet; the first call counts."""
        if self._is_told:
            return
        self._is_told = True
        self._insight.count_answer(self._template or OTHER_ROUTE, status)
        if self.is_audited:
            self._insight.audit.append(self._entry(status, headers, body))

    async def is_kept(self) -> None:
        """Wait, for a bounded time, until the entry outlives this process."""
        if self.is_audited:
            await self._insight.audit.written()

    def gone(self) -> None:
        """The call ended without an answer."""
        self.answered(GONE, (), b"")

    def _entry(
        self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> NewAuditEntry:
        begun = _operation_of(body) if status == 202 else {}  # noqa: PLR2004
        return NewAuditEntry(
            actor=self.caller.actor if self.caller else ANONYMOUS,
            scope=self.caller.scope if self.caller else None,
            method=escape(self._method)[:MAX_METHOD_CHARS],
            route=self._template or OTHER_ROUTE,
            target=self._target() or _made(headers, status),
            body_sha256=hashlib.sha256(self.body).hexdigest() if self.body else None,
            status=status,
            operation=begun.get("id") or _header(headers, OPERATION_HEADER),
            trace_id=begun.get("trace_id"),
            source=self._source,
        )

    def _target(self) -> str | None:
        """Return what the path names; of an unknown path, the path."""
        if self._template is None:
            named = self._path
        else:
            pairs = zip(self._template.split("/"), self._path.split("/"), strict=False)
            named = "/".join(part for shape, part in pairs if shape.startswith("{"))
        return escape(redact(named))[:MAX_TARGET_CHARS] or None


class NotedReply:
    """A `send` that adds headers, knows how far the answer is, and tells the note before it goes.

    The entry stands before the caller can know the answer; nobody sees a change that is not noted.
    """

    def __init__(self, send: Send, headers: Sequence[tuple[bytes, bytes]], note: CallNote) -> None:
        self._send = send
        self._headers = headers
        self._note = note
        self._start: Message | None = None
        self.has_started = False
        self.is_complete = False

    async def __call__(self, message: Message) -> None:
        """Pass a message on; the start of an audited answer waits for the bytes of its body."""
        if message["type"] == "http.response.start":
            self._start = message
            if not self._note.is_audited:
                await self._begin(b"")
            return
        if message["type"] == "http.response.body":
            await self._begin(message.get("body", b""))
            self.is_complete = not message.get("more_body", False)
        await self._send(message)

    async def _begin(self, body: bytes) -> None:
        start, self._start = self._start, None
        if start is None:
            return
        headers = list(start.get("headers", ()))
        self._note.answered(start["status"], headers, body)
        await self._note.is_kept()
        self.has_started = True
        await self._send({**start, "headers": [*headers, *self._headers]})


def _operation_of(body: bytes) -> dict[str, str]:
    """Return the id and the trace of the operation in a 202."""
    if len(body) > MAX_ANSWER_BYTES:
        return {}
    try:
        found: Any = json.loads(body)
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    fields = cast("dict[str, Any]", found)
    return {name: fields[name] for name in ("id", "trace_id") if isinstance(fields.get(name), str)}


def _made(headers: Sequence[tuple[bytes, bytes]], status: int) -> str | None:
    """Return the name of what a 201 made."""
    if status != 201:  # noqa: PLR2004
        return None
    location = _header(headers, b"location")
    return location.rpartition("/")[2] if location else None


def _header(headers: Sequence[tuple[bytes, bytes]], wanted: bytes) -> str | None:
    return next((value.decode("latin-1") for name, value in headers if name == wanted), None)
