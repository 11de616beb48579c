"""What the invented processes write, and who changed what."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import pairwise
from typing import Final

from appliance.supervisor.admin.insight_schemas import Level
from appliance.supervisor.admin.schemas import (
    AuditEntry,
    LogLine,
    Operation,
    OperationKind,
    RequestRow,
)
from dashboard.client.insight import LogQuery

_BEGIN: Final = datetime(2026, 1, 5, 14, 16, tzinfo=UTC)
_LEVELS: Final = ("debug", "info", "warning", "error")
_KEEP: Final = 1000
_START_LINES: Final[tuple[tuple[str, Level, str, str], ...]] = (
    ("supervisor", "info", "serve", "state directory ~/.local/state/quarterdeck"),
    ("e0", "info", "weights", "290 MB read in 1.3 s"),
    ("e0", "debug", "kernels", "avx512-bf16 kernels on 2 threads: the best that this machine runs"),
    ("e1", "info", "weights", "290 MB read in 1.4 s"),
    ("gateway-0", "info", "listen", "data plane on 127.0.0.1:8000"),
    ("e2", "info", "sleep", "level 1: 546 MB given back"),
)
_ROUTES: Final[dict[OperationKind, tuple[str, str]]] = {
    "sleep": ("POST", "/admin/v1/engines/{engine_id}/sleep"),
    "wake": ("POST", "/admin/v1/engines/{engine_id}/wake"),
    "restart": ("POST", "/admin/v1/engines/{engine_id}/restart"),
    "reset-prefix-cache": ("POST", "/admin/v1/engines/{engine_id}/reset-prefix-cache"),
    "lora.load": ("PUT", "/admin/v1/adapters/{name}"),
    "lora.unload": ("DELETE", "/admin/v1/adapters/{name}"),
    "lora.pin": ("POST", "/admin/v1/adapters/{name}/pin"),
    "lora.unpin": ("POST", "/admin/v1/adapters/{name}/unpin"),
    "profile": ("POST", "/admin/v1/profiles"),
}


class DemoLog:
    """Lines of all processes, bounded."""

    def __init__(self) -> None:
        self._lines: list[LogLine] = []
        self._next_id = 1
        for at_s, (process, level, logger, text) in enumerate(_START_LINES):
            self.write(_BEGIN + timedelta(seconds=at_s), process, level, logger, text)

    def write(self, at: datetime, process: str, level: Level, logger: str, text: str) -> LogLine:
        """Append a line."""
        row = LogLine(
            id=self._next_id, at=at, process=process, epoch=1, level=level, logger=logger, text=text
        )
        self._next_id += 1
        self._lines = [*self._lines[1 - _KEEP :], row]
        return row

    def write_end(self, request: RequestRow, at: datetime) -> None:
        """The gateway tells how a request ended."""
        text = f"{request.status} {request.route} {request.completion_tokens} tokens"
        level: Level = "error" if request.state == "failed" else "info"
        row = self.write(at, request.gateway, level, "access", text)
        row.request_id, row.trace_id = request.id, request.trace_id

    def lines(self, query: LogQuery) -> list[LogLine]:
        """The newest lines that fit, oldest first."""
        rank = _LEVELS.index(query.min_level) if query.min_level in _LEVELS else 0
        found = [
            row
            for row in self._lines
            if (query.after_id is None or row.id > query.after_id)
            and (query.process is None or query.process in row.process)
            and _LEVELS.index(row.level) >= rank
            and (query.contains is None or query.contains.lower() in row.text.lower())
        ]
        return found[-query.limit :]


def audit_entries(operations: Sequence[Operation]) -> list[AuditEntry]:
    """The chain of an invented refusal and of everything that was ordered, newest first."""
    return list(_chained(list(_calls(operations))))[::-1]


_Call = tuple[datetime, str, str, str, str, int, str | None]


def _calls(operations: Sequence[Operation]) -> Iterator[_Call]:
    yield _BEGIN, "local", "POST", "/admin/v1/keys", "alice", 201, None
    late = _BEGIN + timedelta(minutes=2)
    yield late, "anonymous", "DELETE", "/admin/v1/keys/{key_id}", "key-1", 401, None
    for row in operations:
        method, route = _ROUTES[row.kind]
        yield row.created_at, row.actor, method, route, row.target, 202, row.id


def _chained(calls: Sequence[_Call]) -> Iterator[AuditEntry]:
    hashes = ["0" * 64]
    for call in calls:
        hashes.append(sha256(f"{hashes[-1]}{call}".encode()).hexdigest())
    for seq, (call, (previous, own)) in enumerate(zip(calls, pairwise(hashes), strict=True)):
        at, actor, method, route, target, status, operation = call
        yield AuditEntry(
            seq=seq + 1,
            at=at,
            actor=actor,
            scope=None if actor == "anonymous" else "admin",
            method=method,
            route=route,
            target=target,
            body_sha256=None,
            status=status,
            operation=operation,
            source="10.9.9.9" if actor == "anonymous" else None,
            previous=previous,
            hash=own,
        )
