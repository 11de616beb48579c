"""Who changed what: every call of the control plane that would change something, allowed or not.

Entries are chained by hashes, see `audit_chain`. A thread writes them, before the caller has the
answer; they are brought to the disk at most once a second. What the supervisor does by itself
(restarts, waking an engine for a request) is in the event journal, not here.
"""

import asyncio
import json
import logging
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from appliance.supervisor.admin.ports import NewAuditEntry
from appliance.supervisor.admin.schemas import AuditCheck, AuditEntry
from appliance.supervisor.audit_chain import FOLDED, START, SYSTEM_ACTOR, SYSTEM_METHOD, Verdict
from appliance.supervisor.audit_file import (
    AuditFile,
    last_entries,
    remembered_head,
    verify_file,
    write_head,
)
from appliance.supervisor.line_pump import LinePump
from engine.clock import now_ns

logger = logging.getLogger(__name__)

ANONYMOUS = "anonymous"
SYNC_S = 1.0
TICK_S = 0.5
DRAIN_S = 5.0
WRITTEN_S = 1.0
"""Longest time that an answer waits for its entry: a disk that stands still stops no operator."""
POLL_S = 0.001
CLOSE_S = 2.0
MINUTE_NS = 60_000_000_000
STRANGERS_PER_MINUTE = 600
"""Calls without a valid key that get an entry each; beyond, a flood fills no disk."""

EntryOutcome = Literal["written", "lost", "folded"]


class AuditLog:
    """Implements `appliance.supervisor.admin.ports.AuditTrail`.

    Args:
        path: The file.
        state_path: The state database, which remembers the last entry.
    """

    def __init__(self, path: Path, state_path: Path) -> None:
        self.on_entries: Callable[[EntryOutcome, int], None] | None = None
        """Counts entries; called on the event loop."""
        self.on_failing: Callable[[bool], None] | None = None
        """Told when entries begin to be lost, and when they are written again."""
        self._path = path
        self._state_path = state_path
        self._state: sqlite3.Connection | None = None
        self._file = AuditFile(path, remembered_head(state_path) or START)
        self._lock = threading.Lock()
        self._counts: Counter[EntryOutcome] = Counter()
        self._is_failing = self._was_failing = False
        self._synced_ns = 0
        self._is_dirty = False
        self._strangers = 0
        self._folded = 0
        self._minute_ns = now_ns()
        try:
            self._file.open(_now())
            self._is_dirty = True
        except OSError as error:
            logger.error("the audit log cannot be opened: %s", error)  # noqa: TRY400 - as said
        self._pump = LinePump("audit-log", self._write, settle=self._settle, pause_s=0)

    # ------------------------------------------------------------ in

    def append(self, entry: NewAuditEntry) -> None:
        """Enter a call; see `AuditTrail`. Never waits."""
        if entry.actor == ANONYMOUS:
            self._begin_minute()
            self._strangers += 1
            if self._strangers > STRANGERS_PER_MINUTE:
                self._folded += 1
                return
        self._put(entry)

    async def written(self) -> None:
        """Wait until the entries so far are in the file; see `AuditTrail`."""
        taken, deadline_ns = self._pump.num_taken, now_ns() + int(WRITTEN_S * 1e9)
        while self._pump.num_done < taken and now_ns() < deadline_ns:  # noqa: ASYNC110 - a thread's
            await asyncio.sleep(POLL_S)

    def _begin_minute(self) -> None:
        """Let strangers have entries again, and enter how many had none."""
        if now_ns() - self._minute_ns < MINUTE_NS:
            return
        self._minute_ns, self._strangers = now_ns(), 0
        self._enter_folded()

    def _enter_folded(self) -> None:
        folded, self._folded = self._folded, 0
        if not folded:
            return
        with self._lock:
            self._counts["folded"] += folded
        text = f"{folded} more calls without a valid key were refused"
        entry = NewAuditEntry(
            actor=SYSTEM_ACTOR,
            scope=None,
            method=SYSTEM_METHOD,
            route=FOLDED,
            target=text,
            body_sha256=None,
            status=0,
        )
        self._put(entry)

    def _put(self, entry: NewAuditEntry) -> None:
        self._pump.put(json.dumps({"at": _now()} | asdict(entry)))

    # ------------------------------------------------------------ out

    async def entries(self, limit: int) -> list[AuditEntry]:
        """Newest first."""
        await asyncio.to_thread(self._pump.drain, DRAIN_S)
        found = await asyncio.to_thread(last_entries, self._path, limit)
        return [AuditEntry.model_validate(entry) for entry in found]

    async def verify(self) -> AuditCheck:
        """Whether nothing was changed, removed or put in between."""
        await asyncio.to_thread(self._pump.drain, DRAIN_S)
        return check_of(await asyncio.to_thread(verify_file, self._path, self._file.head))

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """Hand counts and failures over, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()

    def tick(self) -> None:
        """Do once what `run` does for ever."""
        self._begin_minute()
        with self._lock:
            counts, self._counts = self._counts, Counter()
        counts["lost"] += self._pump.take_lost()
        for outcome, count in counts.items():
            if count and self.on_entries is not None:
                self.on_entries(outcome, count)
        if self._is_failing != self._was_failing:
            self._was_failing = self._is_failing
            if self.on_failing is not None:
                self.on_failing(self._was_failing)

    def close(self) -> None:
        """Write what is left, for a bounded time."""
        self._enter_folded()
        self._pump.close(CLOSE_S)

    # ------------------------------------------------------------ the thread

    def _write(self, lines: Sequence[str]) -> int:
        lost = 0
        for line in lines:
            lost += not self._write_one(line)
        with self._lock:
            self._counts["written"] += len(lines) - lost
        return lost

    def _write_one(self, line: str) -> bool:
        try:
            self._file.append(json.loads(line))
        except OSError as error:
            self._file.lose()
            if not self._is_failing:
                logger.error("audit entries are not written: %s", error)  # noqa: TRY400 - as said
            self._is_failing = True
            return False
        self._is_failing, self._is_dirty = False, True
        return True

    def _settle(self) -> float | None:
        """Bring entries to the disk, at most once a second; the database then knows the last."""
        since_s = (now_ns() - self._synced_ns) / 1e9
        if self._is_dirty and since_s < SYNC_S and not self._pump.is_closed:
            return SYNC_S - since_s
        if self._is_dirty:
            self._save()
        if self._pump.is_closed:
            self._shut()
        return None

    def _save(self) -> None:
        self._is_dirty, self._synced_ns = False, now_ns()
        try:
            self._file.sync()
            if self._state is None:
                self._state = sqlite3.connect(self._state_path, timeout=1.0)
            write_head(self._state, self._file.head)
        except (OSError, sqlite3.Error) as error:
            logger.error("the audit log is not safe on the disk: %s", error)  # noqa: TRY400 - as said

    def _shut(self) -> None:
        self._file.close()
        if self._state is not None:
            self._state.close()
            self._state = None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def check_of(verdict: Verdict) -> AuditCheck:
    """Return a verdict as the admin API shows it."""
    return AuditCheck(
        ok=verdict.problem is None,
        entries=verdict.entries,
        first_bad_seq=verdict.first_bad_seq,
        problem=verdict.problem,
    )
