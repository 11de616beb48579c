"""Logs and an audit log in memory, and who counts answers."""

from datetime import UTC, datetime
from typing import Any, cast

from appliance.supervisor.admin.ports import Diagnostics, Insight, NewAuditEntry
from appliance.supervisor.admin.schemas import AuditCheck, AuditEntry, LogLine

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Logs:
    """Keeps lines; a test puts them in and sees what was asked."""

    def __init__(self) -> None:
        self.kept: list[LogLine] = []
        self.asked: list[dict[str, Any]] = []

    def add(self, text: str, process: str = "e0", level: str = "info", **fields: Any) -> None:
        line = {"id": len(self.kept) + 1, "at": NOW, "process": process, "level": level}
        self.kept.append(LogLine.model_validate(line | {"text": text} | fields))

    def lines(self, **asked: Any) -> list[LogLine]:
        self.asked.append(asked)
        after = asked["after_id"] or 0
        found = [line for line in self.kept if line.id > after]
        return found[: asked["limit"]] if asked["after_id"] else found[-asked["limit"] :]


class Audit:
    """Keeps entries as they come."""

    def __init__(self) -> None:
        self.kept: list[NewAuditEntry] = []
        self.num_written = 0
        self.check = AuditCheck(ok=True, entries=0)

    def append(self, entry: NewAuditEntry) -> None:
        self.kept.append(entry)

    async def written(self) -> None:
        self.num_written = len(self.kept)

    async def entries(self, limit: int) -> list[AuditEntry]:
        rows = [
            AuditEntry(
                seq=seq,
                at=NOW,
                actor=entry.actor,
                scope=entry.scope,
                method=entry.method,
                route=entry.route,
                target=entry.target,
                body_sha256=entry.body_sha256,
                status=entry.status,
                operation=entry.operation,
                source=entry.source,
                previous="0" * 64,
                hash="1" * 64,
            )
            for seq, entry in enumerate(self.kept, start=1)
        ]
        return rows[::-1][:limit]

    async def verify(self) -> AuditCheck:
        return self.check


class InMemoryInsight:
    """All that explains an appliance."""

    def __init__(self, diagnostics: Any = None) -> None:
        self.logs = Logs()
        self.audit = Audit()
        self.diagnostics = diagnostics
        self.answers: list[tuple[str, int]] = []

    def port(self) -> Insight:
        return Insight(
            logs=self.logs,
            audit=self.audit,
            diagnostics=cast("Diagnostics", self.diagnostics),
            count_answer=lambda route, status: self.answers.append((route, status)),
        )
