"""A fleet, a hub and a key store in memory: small, real implementations of the admin ports."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from appliance.supervisor.admin.ports import ConflictError, NotFoundError, RefusedError
from appliance.supervisor.admin.schemas import (
    AbortAnswer,
    AdapterOnEngine,
    AdapterRow,
    CreatedKey,
    CreateKey,
    EngineRow,
    GatewayRow,
    KeyRow,
    LoadAdapterBody,
    Operation,
    Percentiles,
    RequestRow,
    Scope,
    SleepBody,
    Snapshot,
    Span,
    Stats,
    SystemInfo,
    Trace,
)
from tests.appliance.supervisor.admin.in_memory_telemetry import InMemoryTelemetry

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HEX = "0123456789abcdef01234567"
REQUEST_ID = f"req-{HEX}"


class Fleet:
    """Engines that sleep and wake when `finish` says so; at once unless `is_slow`."""

    def __init__(self) -> None:
        self.states = {"e0": "ready", "e1": "ready"}
        self.is_slow = False
        self.has_started = True
        self.on_asleep = "wake"
        self.done = asyncio.Event()
        self.log: list[tuple[str, str, str]] = []
        self._operations: dict[str, Operation] = {}
        self.live = {REQUEST_ID}
        self.loaded: dict[str, AdapterRow] = {}
        self.dtype_reason: str | None = None

    def engines(self) -> list[EngineRow]:
        return [
            EngineRow(
                id=name,
                state=state,
                epoch=1,
                pid=7,
                model="m",
                device="cpu",
                since=NOW,
                dtype="float32",
                dtype_reason=self.dtype_reason,
            )
            for name, state in self.states.items()
        ]

    def gateways(self) -> list[GatewayRow]:
        return [GatewayRow(name="gateway-0", epoch=1, pid=8, state="ready", restarts=0)]

    def sleep(self, engine_id: str, body: SleepBody, actor: str) -> Operation:
        self.log.append((f"sleep {body.level} {body.mode}", engine_id, actor))
        return self._begin("sleep", engine_id, actor, "asleep")

    def wake(self, engine_id: str, actor: str) -> Operation:
        self.log.append(("wake", engine_id, actor))
        return self._begin("wake", engine_id, actor, "ready")

    def restart(self, engine_id: str, actor: str) -> Operation:
        self.log.append(("restart", engine_id, actor))
        return self._begin("restart", engine_id, actor, "ready")

    def reset_prefix_cache(self, engine_id: str, actor: str) -> Operation:
        self.log.append(("reset-prefix-cache", engine_id, actor))
        if engine_id not in self.states:
            raise NotFoundError(f"there is no engine {engine_id!r}")
        return self._operation("reset-prefix-cache", engine_id, actor, {"dropped_blocks": 3})

    def adapters(self) -> list[AdapterRow]:
        return list(self.loaded.values())

    async def load_adapter(self, name: str, body: LoadAdapterBody, actor: str) -> Operation:
        self.log.append((f"load {body.path} {body.pinned}", name, actor))
        if not body.path.startswith("/adapters/"):
            raise RefusedError("adapter_not_found", "no such directory", "Give another.")
        self.loaded[name] = AdapterRow(
            name=name,
            state="loaded",
            model=body.model or "m",
            path=body.path,
            content_hash="ab" * 32,
            rank=8,
            num_bytes=2000,
            pinned=bool(body.pinned),
            engines=[AdapterOnEngine(engine=name, state="loaded") for name in self.states],
        )
        result = {"rank": 8, "num_bytes": 2000, "engines": list(self.states)}
        return self._operation("lora.load", name, actor, result)

    def unload_adapter(self, name: str, actor: str) -> Operation:
        self.log.append(("unload", name, actor))
        if self.loaded.pop(name, None) is None:
            raise NotFoundError(f"there is no adapter {name}")
        return self._operation("lora.unload", name, actor, {"running_requests": 0})

    def pin_adapter(self, name: str, actor: str, *, pinned: bool) -> Operation:
        self.log.append((f"pin {pinned}", name, actor))
        if name not in self.loaded:
            raise NotFoundError(f"there is no adapter {name}")
        self.loaded[name] = self.loaded[name].model_copy(update={"pinned": pinned})
        kind = "lora.pin" if pinned else "lora.unpin"
        return self._operation(kind, name, actor, {"pinned": pinned})

    def operations(self) -> list[Operation]:
        return list(reversed(self._operations.values()))

    async def operation(self, operation_id: str, wait_s: float) -> Operation:
        if operation_id not in self._operations:
            raise NotFoundError(f"there is no operation {operation_id!r}")
        if wait_s and self._operations[operation_id].state == "running":
            try:
                await asyncio.wait_for(self.done.wait(), wait_s)
            except TimeoutError:
                return self._operations[operation_id]
            self.finish(operation_id)
        return self._operations[operation_id]

    def finish(self, operation_id: str, error: str | None = None) -> None:
        running = self._operations[operation_id]
        self._operations[operation_id] = running.model_copy(
            update={"state": "failed" if error else "done", "error": error, "ended_at": NOW}
        )

    async def abort(self, request_id: str, actor: str) -> AbortAnswer:
        self.log.append(("abort", request_id, actor))
        if not request_id.endswith(HEX):
            raise NotFoundError("there is no such request")
        if REQUEST_ID not in self.live:
            raise ConflictError("it has ended", "finished", [])
        self.live.clear()
        return AbortAnswer(id=REQUEST_ID, state="aborted", completion_tokens=3)

    def system(self) -> SystemInfo:
        return SystemInfo(
            version="0",
            pid=1,
            started_at=NOW,
            state_dir="/s",
            run_dir="/r",
            data_plane="http://127.0.0.1:8000",
            control_plane="http://127.0.0.1:8001",
            data_socket="/r/d",
            admin_socket="/r/a",
            on_asleep=self.on_asleep,
        )

    def startup(self) -> tuple[bool, list[EngineRow]]:
        return self.has_started, self.engines()

    def _begin(self, kind: str, engine_id: str, actor: str, state: str) -> Operation:
        if engine_id not in self.states:
            raise NotFoundError(f"there is no engine {engine_id!r}")
        if self.states[engine_id] == "crash_loop" and kind != "restart":
            raise ConflictError(f"{engine_id} is in a crash loop", "crash_loop", ["restart"])
        self.states[engine_id] = state
        return self._operation(kind, engine_id, actor, {"freed_bytes": 5})

    def _operation(
        self, kind: str, target: str, actor: str, result: dict[str, object]
    ) -> Operation:
        operation = Operation(
            id=f"op-{len(self._operations)}",
            kind=kind,
            target=target,
            state="running" if self.is_slow else "done",
            actor=actor,
            trace_id="0" * 32,
            created_at=NOW,
            result=result,
        )
        self._operations[operation.id] = operation
        return operation


def request_row(state: str = "decode") -> RequestRow:
    return RequestRow(
        id=REQUEST_ID,
        trace_id="1" * 32,
        state=state,
        route="/v1/chat/completions",
        gateway="gateway-0",
        engine="e0",
        stream=True,
        received_at=NOW,
        age_s=1.5,
    )


def stats() -> Stats:
    return Stats(
        at=NOW,
        window_s=60,
        running=1,
        waiting=0,
        held=0,
        requests_per_s=1,
        prompt_tokens_per_s=1,
        generation_tokens_per_s=1,
        error_ratio=0,
        ttft_ms=Percentiles(),
        tpot_ms=Percentiles(),
        queue_ms=Percentiles(),
        e2e_ms=Percentiles(),
        received=1,
        rejected=0,
        finished=0,
        aborted=0,
        failed=0,
        dropped_records=0,
    )


def trace(span_count: int = 1) -> Trace:
    spans = [
        Span(
            name=f"span {index}",
            kind="internal",
            process="gateway-0",
            start_ns=index,
            end_ns=index + 1,
            span_id=f"{index:016x}",
            parent_id=None if index == 0 else f"{0:016x}",
        )
        for index in range(span_count)
    ]
    return Trace(request=request_row("finished"), headline="TTFT 1 ms", spans=spans, complete=True)


class Hub(InMemoryTelemetry):
    """One request, one trace, and a stream that sends what a test puts into `feed`."""

    def __init__(self) -> None:
        super().__init__()
        self.feed: asyncio.Queue[tuple[int, str, str] | None] = asyncio.Queue()
        self.after: list[int | None] = []
        self.readers = 0
        self.error: Exception | None = None

    def requests(self, state: str | None, limit: int) -> list[RequestRow]:
        return [request_row()][:limit] if state in {None, "live"} else []

    def request(self, request_id: str) -> RequestRow:
        if not request_id.endswith(HEX):
            raise NotFoundError(f"there is no request {request_id!r}")
        return request_row()

    async def trace(self, request_id: str, *, content: bool = False) -> Trace:
        self.request(request_id)
        self.content_shown.append(content)
        return trace()

    def stats(self) -> Stats:
        if self.error is not None:
            raise self.error
        return stats()

    def snapshot(self) -> Snapshot:
        return Snapshot(
            engines=[], gateways=[], requests=[], operations=[], stats=stats(), events=[]
        )

    async def subscribe(self, after_id: int | None) -> AsyncIterator[tuple[int, str, str]]:
        self.after.append(after_id)
        self.readers += 1
        try:
            while (event := await self.feed.get()) is not None:
                yield event
        finally:
            self.readers -= 1

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        return b"quarterdeck_up 1\n", "text/plain; version=0.0.4"


class Keys:
    """Keys with readable secrets: `<scope>-secret`."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[bytes, KeyRow]] = {}
        for scope in ("inference", "viewer", "operator", "admin"):
            self._add(f"{scope}-secret", scope, scope)

    def verify(self, secret: bytes) -> KeyRow | None:
        digest = hashlib.sha256(secret).digest()
        for known, row in self._rows.values():
            if known == digest and row.revoked_at is None:
                return row
        return None

    def rows(self) -> list[KeyRow]:
        return [row for _, row in self._rows.values()]

    def create(self, body: CreateKey, actor: str) -> CreatedKey:
        secret = secrets.token_hex(8)
        row = self._add(secret, body.name, body.scope, allows_content=body.allows_content)
        return CreatedKey(**row.model_dump(), secret=secret)

    def revoke(self, key_id: str, actor: str) -> KeyRow:
        if key_id not in self._rows:
            raise NotFoundError(f"there is no key {key_id!r}")
        digest, row = self._rows[key_id]
        row = row.model_copy(update={"revoked_at": NOW})
        self._rows[key_id] = (digest, row)
        return row

    def _add(self, secret: str, name: str, scope: Scope, *, allows_content: bool = False) -> KeyRow:
        row = KeyRow(
            id=f"k{len(self._rows)}",
            name=name,
            scope=scope,
            created_at=NOW,
            allows_content=allows_content,
        )
        self._rows[row.id] = (hashlib.sha256(secret.encode()).digest(), row)
        return row
