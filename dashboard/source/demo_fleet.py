"""An invented fleet that lives by a step counter: the same run every time."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final, Literal

from appliance.supervisor.admin.schemas import (
    EngineRow,
    EngineStateName,
    JournalEvent,
    Operation,
    OperationKind,
    Progress,
    RequestRow,
    Stats,
)
from dashboard.source.demo_adapters import USERS, DemoAdapters
from dashboard.source.demo_log import DemoLog
from dashboard.source.demo_profiles import DemoProfiles
from dashboard.source.demo_stats import stats_frame
from dashboard.source.frames import Frame

START: Final = datetime(2026, 1, 5, 14, 20, tzinfo=UTC)
WEIGHTS_BYTES: Final = 290_000_000
BASE_BYTES: Final = 232_000_000
INCIDENT_AT_S: Final = 45.0
"""When e1 dies, so that a restart can be watched."""
_STEP_PARTS: Final = {
    "schedule": 0.004,
    "build": 0.011,
    "forward": 0.957,
    "sample": 0.023,
    "send": 0.005,
}
_START_PHASES: Final = {"import": 2.1, "weights": 0.4, "kv_cache": 0.1, "warm_up": 0.3}
_ACTIONS: Final[dict[str, list[str]]] = {
    "ready": ["sleep", "restart"],
    "asleep": ["wake", "restart"],
}
_BATCH: Final = 6
_KEYS: Final = ("ci-bot", "alice", "web", "batch")


_BEFORE: Final[tuple[tuple[int, str, Literal["info", "warning", "error"], str, str], ...]] = (
    (230, "gateway.started", "info", "gateway-0", "gateway-0 listens"),
    (185, "engine.ready", "info", "e0", "e0 serves"),
    (184, "engine.ready", "info", "e1", "e1 serves"),
    (120, "engine.asleep", "info", "e2", "e2 freed 290 MB"),
    (41, "exporter.failing", "warning", "collector", "collector did not answer; spans wait"),
    (22, "exporter.works", "info", "collector", "collector answers again, nothing was lost"),
    (6, "engine.starting", "info", "e3", "e3 was spawned"),
)
"""What happened before the demo begins: seconds ago, and the event."""


@dataclass
class Job:
    """A timed transition of an engine; `operation` is what asked for it."""

    engine: str
    kind: Literal["sleep", "wake", "start"]
    left_s: float
    length_s: float
    operation: Operation | None = None
    level: int = 1


@dataclass
class Fleet:
    """Engines, requests and operations; `step` moves them on and says what changed."""

    random: Random = field(default_factory=lambda: Random(7))  # noqa: S311 - a demo
    at: datetime = START
    engines: dict[str, EngineRow] = field(default_factory=dict[str, EngineRow])
    requests: dict[str, RequestRow] = field(default_factory=dict[str, RequestRow])
    operations: dict[str, Operation] = field(default_factory=dict[str, Operation])
    events: list[JournalEvent] = field(default_factory=list[JournalEvent])
    jobs: list[Job] = field(default_factory=list[Job])
    ended: list[RequestRow] = field(default_factory=list[RequestRow])
    adapters: DemoAdapters = field(default_factory=lambda: DemoAdapters(START))
    profiles: DemoProfiles = field(default_factory=DemoProfiles)
    log: DemoLog = field(default_factory=DemoLog)

    def __post_init__(self) -> None:
        states: tuple[EngineStateName, ...] = ("ready", "ready", "asleep", "starting")
        for index, state in enumerate(states):
            self.engines[f"e{index}"] = self._engine(index, state)
        self.engines["e2"].sleep_level = 1
        self.engines["e2"].resident_bytes = BASE_BYTES
        self.jobs.append(Job("e3", "start", left_s=14, length_s=20))
        for before_s, kind, level, subject, text in _BEFORE:
            entry = self.event(kind, level, subject, text)
            entry.at = START - timedelta(seconds=before_s)

    def _engine(self, index: int, state: EngineStateName) -> EngineRow:
        return EngineRow(
            id=f"e{index}",
            state=state,
            epoch=1,
            pid=48110 + index,
            model="smollm2",
            served_names=["smollm2"],
            device="cpu",
            dtype="bfloat16",
            kernel_backend="cpu",
            kernel_path="avx512-bf16",
            kernel_reason="the best that this machine runs",
            quantization="w4",
            quantization_reason="as the file holds them",
            kv_cache_dtype="bfloat16",
            weight_cache="hit",
            num_threads=2,
            max_model_len=2048,
            weights_bytes=WEIGHTS_BYTES,
            kv_cache_bytes=256_000_000,
            resident_bytes=BASE_BYTES + WEIGHTS_BYTES + index * 9_000_000,
            since=self.at - timedelta(seconds=185 + 60 * index),
            heartbeat_age_s=0.1,
            allowed_actions=_ACTIONS.get(state, ["restart"]),
            step_parts=_STEP_PARTS,
            start_phases=_START_PHASES,
        )

    def step(self, step_s: float) -> Iterator[Frame]:
        """Advance by `step_s` seconds; yields the rows that changed, then the statistics."""
        self.at += timedelta(seconds=step_s)
        yield from self._incident(step_s)
        yield from self._run_jobs(step_s)
        yield from self._arrivals(step_s)
        yield from self._progress(step_s)
        yield from self._load()
        yield from self._adapters(step_s)
        yield from self._profiles(step_s)
        yield self.stats()

    def _profiles(self, step_s: float) -> Iterator[Frame]:
        for operation, row in list(self.profiles.step(step_s, self.at)):
            if row is None:
                yield operation.model_copy()
                continue
            text = f"{row.steps} steps recorded"
            yield self.event("profile.done", "info", row.engine, text)
            result = {
                "profile_id": row.id,
                "first_step": row.first_step,
                "last_step": row.last_step,
                "files": [file.model_dump() for file in row.files],
            }
            yield self.end_operation(operation, result)

    def _adapters(self, step_s: float) -> Iterator[Frame]:
        requests = self.requests.values()
        changes = self.adapters.step(step_s, self.at, self.engines.values(), requests)
        for row, operation in list(changes):
            yield row
            if operation is not None:
                text = f"rank {row.rank}, on all engines"
                yield self.event("adapter.loaded", "info", row.name, text)
                yield self.end_operation(operation, self.adapters.result(row.name))

    @property
    def elapsed_s(self) -> float:
        """Since the start of the demo."""
        return (self.at - START).total_seconds()

    def stats(self) -> Stats:
        """The statistics of this moment."""
        return stats_frame(
            self.at, list(self.requests.values()), self.ended, list(self.engines.values())
        )

    def event(
        self, kind: str, level: Literal["info", "warning", "error"], subject: str, text: str
    ) -> JournalEvent:
        """Write an entry of the journal."""
        entry = JournalEvent(
            id=len(self.events) + 1, at=self.at, kind=kind, level=level, subject=subject, text=text
        )
        self.events.append(entry)
        self.log.write(self.at, "supervisor", level, kind, text)
        return entry

    def begin_operation(self, kind: OperationKind, target: str) -> Operation:
        """Note that somebody ordered something."""
        operation = Operation(
            id=f"op-{len(self.operations) + 1}",
            kind=kind,
            target=target,
            state="running",
            actor="demo",
            trace_id="0" * 32,
            created_at=self.at,
        )
        self.operations[operation.id] = operation
        self.log.write(self.at, "supervisor", "info", "operation", f"{kind} of {target} begins")
        return operation

    def _incident(self, step_s: float) -> Iterator[Frame]:
        before_s = self.elapsed_s - step_s
        if before_s < INCIDENT_AT_S <= self.elapsed_s and self.engines["e1"].state == "ready":
            yield self.event("engine.died", "error", "e1", "e1 was killed by signal 9; restarting")
            self.engines["e1"].last_exit = "signal 9"
            yield from self.begin_start("e1", None, 6.0)

    # verbs

    def begin_sleep(
        self, engine_id: str, level: int, mode: str, operation: Operation
    ) -> Iterator[Frame]:
        """Drain, then sleep."""
        engine = self._set(engine_id, "draining")
        if mode == "abort":
            yield from self._fail_all(engine_id, "aborted", "engine_asleep")
        self.jobs.append(Job(engine_id, "sleep", 0.5, 0.5, operation, level))
        yield engine.model_copy()

    def begin_wake(self, engine_id: str, operation: Operation | None) -> Iterator[Frame]:
        """Load the weights again."""
        engine = self._set(engine_id, "waking")
        engine.phase = "weights"
        self.jobs.append(Job(engine_id, "wake", 2.0, 2.0, operation))
        yield engine.model_copy()

    def begin_start(
        self, engine_id: str, operation: Operation | None, length_s: float
    ) -> Iterator[Frame]:
        """End what runs there and start anew under the next epoch."""
        yield from self._fail_all(engine_id, "failed", "engine_restarted")
        self.jobs = [job for job in self.jobs if job.engine != engine_id]
        engine = self._set(engine_id, "starting")
        engine.epoch += 1
        engine.restarts += 1
        engine.pid = (engine.pid or 0) + 10
        engine.resident_bytes = BASE_BYTES // 2
        self.jobs.append(Job(engine_id, "start", length_s, length_s, operation))
        yield engine.model_copy()

    def _set(self, engine_id: str, state: EngineStateName) -> EngineRow:
        engine = self.engines[engine_id]
        engine.state = state
        engine.since = self.at
        engine.phase, engine.progress = None, None
        engine.allowed_actions = list(_ACTIONS.get(state, ["restart"]))
        return engine

    def _run_jobs(self, step_s: float) -> Iterator[Frame]:
        for job in list(self.jobs):
            engine = self.engines[job.engine]
            if job.kind == "sleep" and self.live_on(job.engine):
                continue
            job.left_s -= step_s
            if job.left_s <= 0:
                self.jobs.remove(job)
                yield from self._finish(job, engine)
            elif job.kind != "sleep":
                done = 1 - job.left_s / job.length_s
                engine.phase = "weights" if done < 0.8 else "warm up"  # noqa: PLR2004 - a demo
                engine.progress = Progress(done=round(done * WEIGHTS_BYTES), total=WEIGHTS_BYTES)
            yield engine.model_copy()

    def _finish(self, job: Job, engine: EngineRow) -> Iterator[Frame]:
        before = engine.resident_bytes or 0
        full = BASE_BYTES + WEIGHTS_BYTES + int(engine.id[1:]) * 9_000_000
        self._set(engine.id, "asleep" if job.kind == "sleep" else "ready")
        engine.sleep_level = job.level if job.kind == "sleep" else 0
        engine.resident_bytes = BASE_BYTES if job.kind == "sleep" else full
        freed = before - BASE_BYTES
        text = f"freed {freed // 1_000_000} MB" if job.kind == "sleep" else "serves again"
        yield self.event(f"engine.{engine.state}", "info", engine.id, f"{engine.id} {text}")
        if job.operation:
            result: dict[str, Any] = {"resident_bytes": engine.resident_bytes}
            if job.kind == "sleep":
                result = {"freed_bytes": freed, "level": job.level}
            yield self.end_operation(job.operation, result)

    def end_operation(self, operation: Operation, result: dict[str, Any]) -> Operation:
        """Mark an operation as done."""
        operation.state, operation.ended_at, operation.result = "done", self.at, result
        return operation.model_copy()

    # requests

    def live_on(self, engine_id: str) -> list[RequestRow]:
        """Requests in flight on an engine."""
        return [row for row in self.requests.values() if row.engine == engine_id]

    def _ready(self) -> list[EngineRow]:
        return [engine for engine in self.engines.values() if engine.state == "ready"]

    def _arrivals(self, step_s: float) -> Iterator[Frame]:
        wave = 1.5 if int(self.elapsed_s / 15) % 2 else 0.8
        ready = self._ready()
        if (
            ready
            and self.random.random() < wave * step_s
            and len(self.requests) < 2 * _BATCH * len(ready)
        ):
            yield self.new_request(self.random.choice(_KEYS), self.random.randint(16, 90))

    def new_request(self, key_id: str, max_tokens: int, model: str | None = None) -> RequestRow:
        """Accept a request on the engine with the least to do."""
        engine = min(self._ready(), key=lambda row: len(self.live_on(row.id)))
        row = RequestRow(
            id=f"req-{self.random.getrandbits(96):024x}",
            trace_id=f"{self.random.getrandbits(128):032x}",
            state="queued",
            route="/v1/chat/completions",
            model=model or self._model_of(key_id, engine),
            key_id=key_id,
            engine=engine.id,
            gateway="gateway-0",
            stream=True,
            received_at=self.at,
            age_s=0.0,
            prompt_tokens=self.random.choice((24, 38, 112, 512, 1240)),
            max_tokens=max_tokens,
        )
        self.requests[row.id] = row
        return row.model_copy()

    def _model_of(self, key_id: str, engine: EngineRow) -> str:
        wanted = USERS.get(key_id)
        return wanted if wanted in self.adapters.names() else engine.model

    def _progress(self, step_s: float) -> Iterator[Frame]:
        for row in list(self.requests.values()):
            row.age_s = round(row.age_s + step_s, 3)
            ahead = sum(other.state != "queued" for other in self.live_on(row.engine or ""))
            if row.state == "queued" and ahead < _BATCH:
                row.state = "prefill"
                row.queue_ms = round(
                    self.random.uniform(0.4, 3) + 1000 * max(0, row.age_s - step_s), 2
                )
            elif row.state == "prefill":
                self._first_token(row)
            elif row.state == "decode":
                yield from self._decode(row, step_s)
            yield row.model_copy()

    def _first_token(self, row: RequestRow) -> None:
        row.state = "decode"
        row.ttft_ms = round(
            (row.queue_ms or 0) + 30 + row.prompt_tokens * self.random.uniform(0.25, 0.4), 1
        )

    def _decode(self, row: RequestRow, step_s: float) -> Iterator[Frame]:
        row.tokens_per_s = round(self.random.uniform(11, 16), 1)
        row.completion_tokens += max(1, round(row.tokens_per_s * step_s))
        if row.completion_tokens >= (row.max_tokens or 1):
            row.completion_tokens = row.max_tokens or 1
            yield self.end_request(row, "finished", None)

    def end_request(
        self, row: RequestRow, state: Literal["finished", "aborted", "failed"], code: str | None
    ) -> RequestRow:
        """Take a request out of the live ones."""
        self.requests.pop(row.id, None)
        row.state, row.error_code, row.ended_at = state, code, self.at
        row.status = 200 if state == "finished" else 499 if state == "aborted" else 500
        self.ended = [*self.ended[-199:], row]
        self.log.write_end(row, self.at)
        return row.model_copy()

    def _fail_all(
        self, engine_id: str, state: Literal["aborted", "failed"], code: str
    ) -> Iterator[Frame]:
        for row in self.live_on(engine_id):
            yield self.end_request(row, state, code)

    def _load(self) -> Iterator[Frame]:
        for engine in self.engines.values():
            live = self.live_on(engine.id)
            engine.running = sum(row.state in ("prefill", "decode") for row in live)
            engine.waiting = len(live) - engine.running
            engine.tokens_per_s = round(
                sum(row.tokens_per_s or 0 for row in live if row.state == "decode"), 1
            )
            tokens = sum(row.prompt_tokens + row.completion_tokens for row in live)
            engine.kv_used_ratio = min(1.0, tokens / 5000)
            engine.steps += 12 if live else 1
            engine.adapters = self.adapters.names() if engine.state == "ready" else []
            yield engine.model_copy()
