"""The adapters of the invented fleet."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from appliance.supervisor.admin.schemas import (
    AdapterOnEngine,
    AdapterRow,
    AdapterState,
    EngineRow,
    LoadAdapterBody,
    Operation,
    RequestRow,
)
from dashboard.source.frames import Frame

ROOT: Final = "/srv/adapters"
LOAD_S: Final = 1.5
USERS: Final = {"alice": "sql-lora", "web": "chat-lora"}
"""Which key asks for which adapter."""
_TARGETS: Final = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclass
class _Load:
    name: str
    left_s: float
    operation: Operation


class DemoAdapters:
    """Adapters by name; `step` moves loads on and says what changed."""

    def __init__(self, at: datetime) -> None:
        self.rows: dict[str, AdapterRow] = {}
        self._loads: list[_Load] = []
        for name, rank, pinned in (("sql-lora", 16, True), ("chat-lora", 32, False)):
            row = self._row(name, f"{ROOT}/{name}", at - timedelta(hours=2), pinned=pinned)
            self.rows[name] = row.model_copy(update={"rank": rank, "num_bytes": rank * 115_200})

    @staticmethod
    def _row(name: str, path: str, at: datetime, *, pinned: bool) -> AdapterRow:
        return AdapterRow(
            name=name,
            state="loaded",
            model="smollm2",
            path=path,
            content_hash=sha256(path.encode()).hexdigest(),
            rank=16,
            num_bytes=1_843_200,
            targets=list(_TARGETS),
            pinned=pinned,
            loaded_at=at,
        )

    def begin_load(
        self, name: str, body: LoadAdapterBody, operation: Operation, at: datetime
    ) -> Iterator[Frame]:
        """Read it for a while."""
        row = self._row(name, body.path, at, pinned=bool(body.pinned))
        self.rows[name] = row.model_copy(update={"state": "loading", "content_hash": ""})
        self._loads.append(_Load(name, LOAD_S, operation))
        yield self.rows[name].model_copy()

    def unload(self, name: str) -> Iterator[Frame]:
        """Take a name away."""
        row = self.rows.pop(name)
        self._loads = [load for load in self._loads if load.name != name]
        yield row.model_copy(update={"state": "removed"})

    def pin(self, name: str, *, pinned: bool) -> Iterator[Frame]:
        """Pin or unpin."""
        self.rows[name].pinned = pinned
        yield self.rows[name].model_copy()

    def names(self) -> list[str]:
        """Names that requests may use."""
        return [name for name, row in self.rows.items() if row.state == "loaded"]

    def step(
        self,
        step_s: float,
        at: datetime,
        engines: Iterable[EngineRow],
        requests: Iterable[RequestRow],
    ) -> Iterator[tuple[AdapterRow, Operation | None]]:
        """Yield the rows that changed, with the operation that ended by it."""
        ended = dict(self._advance(step_s))
        engines, requests = list(engines), list(requests)
        for name, row in self.rows.items():
            before = row.model_copy()
            self._fill(row, at, engines, [r.engine for r in requests if r.model == name])
            if row != before or name in ended:
                yield row.model_copy(), ended.get(name)

    def _advance(self, step_s: float) -> Iterator[tuple[str, Operation]]:
        for load in list(self._loads):
            load.left_s -= step_s
            if load.left_s <= 0:
                self._loads.remove(load)
                row = self.rows[load.name]
                row.state, row.content_hash = "loaded", sha256(row.path.encode()).hexdigest()
                yield load.name, load.operation

    @staticmethod
    def _fill(
        row: AdapterRow, at: datetime, engines: list[EngineRow], users: list[str | None]
    ) -> None:
        row.running_requests = len(users)
        if users:
            row.last_used_at = at
        row.engines = [
            AdapterOnEngine(
                engine=engine.id,
                state=_state_on(row.state, engine),
                active=row.pinned or engine.id in users,
                resident=True,
                running_requests=users.count(engine.id),
            )
            for engine in engines
        ]

    def result(self, name: str) -> dict[str, Any]:
        """What a load reports."""
        row = self.rows[name]
        return {"rank": row.rank, "num_bytes": row.num_bytes, "pinned": row.pinned}


def _state_on(state: AdapterState, engine: EngineRow) -> AdapterState:
    return state if engine.state == "ready" else "missing"
