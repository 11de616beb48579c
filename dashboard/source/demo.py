"""The invented instance as a source: `--demo` needs no server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final

from appliance.supervisor.admin.schemas import (
    AbortAnswer,
    AdapterRow,
    GatewayRow,
    LoadAdapterBody,
    Operation,
    OperationKind,
    Problem,
    RequestRow,
    SleepBody,
    Snapshot,
    Stats,
    SystemInfo,
    Trace,
    WhoAmI,
)
from dashboard.client.problems import ApiProblem
from dashboard.client.prompt import PromptAnswer
from dashboard.source.demo_adapters import ROOT
from dashboard.source.demo_fleet import START, Fleet
from dashboard.source.demo_insight import DemoInsight, problem
from dashboard.source.demo_trace import demo_trace
from dashboard.source.frames import Frame, History, Link

STEP_S: Final = 0.5
_WARM_UP_STEPS: Final = 80


async def _real_pace() -> None:
    await asyncio.sleep(STEP_S)


class DemoSource:
    """Frames of an invented fleet, the same in every run.

    Args:
        pace: Awaited between two steps of half an invented second.
        warm_up: Steps that already passed, so that the charts are not empty.
    """

    def __init__(
        self, pace: Callable[[], Awaitable[None]] = _real_pace, warm_up: int = _WARM_UP_STEPS
    ) -> None:
        self._fleet = Fleet()
        self._pace = pace
        self._past: list[Stats] = []
        self._pushed: list[Frame] = []
        self._stepped = asyncio.Condition()
        self._insight = DemoInsight(self._fleet, self._operation)
        for _ in range(warm_up):
            self._past.extend(f for f in self._fleet.step(STEP_S) if isinstance(f, Stats))

    @property
    def label(self) -> str:
        """Stands where an address would."""
        return "demo"

    @property
    def insight(self) -> DemoInsight:
        """Invented explanations."""
        return self._insight

    async def frames(self) -> AsyncIterator[Frame]:
        """Yield frames for ever."""
        yield Link(connected=True)
        yield WhoAmI(actor="local", scope="admin", transport="unix")
        yield _system(self.label)
        for stats in self._past:
            yield stats
        yield self._snapshot()
        yield History(tuple(row.model_copy() for row in self._fleet.ended))
        while True:
            await self._pace()
            pushed, self._pushed = self._pushed, []
            for frame in (*pushed, *self._fleet.step(STEP_S)):
                yield frame
            async with self._stepped:
                self._stepped.notify_all()

    def _snapshot(self) -> Snapshot:
        fleet = self._fleet
        return Snapshot(
            engines=[row.model_copy() for row in fleet.engines.values()],
            gateways=[GatewayRow(name="gateway-0", epoch=1, pid=48105, state="ready", restarts=0)],
            requests=[row.model_copy() for row in fleet.requests.values()],
            operations=[],
            stats=fleet.stats(),
            events=list(fleet.events),
            adapters=[row.model_copy() for row in fleet.adapters.rows.values()],
        )

    async def trace(self, request_id: str) -> Trace:
        """The trace of an ended request."""
        return demo_trace(self._find(request_id, self._fleet.ended))

    def _find(self, request_id: str, rows: Iterable[RequestRow]) -> RequestRow:
        for row in rows:
            if row.id == request_id:
                return row.model_copy()
        raise problem(404, "not_found", "no such trace", "it comes when the request ends")

    async def sleep(self, engine_id: str, body: SleepBody) -> Operation:
        """Drain and sleep."""
        self._check(engine_id, "sleep")
        operation = self._operation("sleep", engine_id)
        self._push(self._fleet.begin_sleep(engine_id, body.level, body.mode, operation))
        return operation.model_copy()

    async def wake(self, engine_id: str) -> Operation:
        """Wake."""
        self._check(engine_id, "wake")
        operation = self._operation("wake", engine_id)
        self._push(self._fleet.begin_wake(engine_id, operation))
        return operation.model_copy()

    async def restart(self, engine_id: str) -> Operation:
        """Restart."""
        self._check(engine_id, "restart")
        operation = self._operation("restart", engine_id)
        self._push(self._fleet.begin_start(engine_id, operation, 5.0))
        return operation.model_copy()

    def _check(self, engine_id: str, verb: str) -> None:
        engine = self._fleet.engines.get(engine_id)
        if engine is None:
            raise problem(404, "not_found", f"no engine {engine_id}", "see the engines table")
        if verb not in engine.allowed_actions:
            raise ApiProblem(
                Problem(
                    title="conflict",
                    status=409,
                    detail=f"{engine_id} is {engine.state}",
                    code="conflict",
                    hint=f"it takes: {', '.join(engine.allowed_actions)}",
                    current_state=engine.state,
                    allowed_actions=engine.allowed_actions,
                )
            )

    async def load_adapter(self, name: str, body: LoadAdapterBody) -> Operation:
        """Load an invented adapter; only what is below the root exists."""
        if not body.path.startswith(f"{ROOT}/"):
            text = "there is no such directory below an adapter root"
            raise problem(422, "adapter_not_found", text, f"the demo has {ROOT}")
        operation = self._operation("lora.load", name)
        fleet = self._fleet
        self._push(fleet.adapters.begin_load(name, body, operation, fleet.at))
        return operation.model_copy()

    async def unload_adapter(self, name: str) -> Operation:
        """Unload an adapter."""
        self._adapter(name)
        operation = self._operation("lora.unload", name)
        self._push(self._fleet.adapters.unload(name))
        return self._ended(operation)

    async def pin_adapter(self, name: str, *, pinned: bool) -> Operation:
        """Pin or unpin an adapter."""
        self._adapter(name)
        operation = self._operation("lora.pin" if pinned else "lora.unpin", name)
        self._push(self._fleet.adapters.pin(name, pinned=pinned))
        return self._ended(operation)

    def _adapter(self, name: str) -> AdapterRow:
        row = self._fleet.adapters.rows.get(name)
        if row is None:
            raise problem(404, "not_found", f"no adapter {name}", "see the adapters table")
        return row

    def _ended(self, operation: Operation) -> Operation:
        ended = self._fleet.end_operation(operation, {})
        self._push([ended])
        return ended.model_copy()

    def _operation(self, kind: OperationKind, target: str) -> Operation:
        operation = self._fleet.begin_operation(kind, target)
        self._push([operation.model_copy()])
        return operation

    def _push(self, frames: Iterable[Frame]) -> None:
        self._pushed.extend(frames)

    async def operation(self, operation_id: str, wait_s: float) -> Operation:
        """The operation, at its end or after `wait_s`."""
        operation = self._fleet.operations[operation_id]
        async with self._stepped:
            try:
                await asyncio.wait_for(
                    self._stepped.wait_for(lambda: operation.ended_at is not None), wait_s
                )
            except TimeoutError:
                return operation.model_copy()
        return operation.model_copy()

    async def abort(self, request_id: str) -> AbortAnswer:
        """End a live request."""
        row = self._fleet.requests.get(request_id)
        if row is None:
            raise problem(409, "conflict", "the request has ended", "open its trace instead")
        self._push([self._fleet.end_request(row, "aborted", "aborted_by_operator")])
        return AbortAnswer(id=request_id, state="aborted", completion_tokens=row.completion_tokens)

    async def try_prompt(self, model: str, prompt: str) -> PromptAnswer:
        """Run an invented request to its end."""
        if not any(engine.state == "ready" for engine in self._fleet.engines.values()):
            raise problem(503, "engine_asleep", "no engine is ready", "w wakes one")
        row = self._fleet.new_request("you", 24, model)
        self._push([row])
        async with self._stepped:
            await self._stepped.wait_for(lambda: row.id not in self._fleet.requests)
        return PromptAnswer(row.id, f"(invented answer of {model} to {len(prompt)} characters)")

    async def aclose(self) -> None:
        """Nothing to let go of."""


def _system(label: str) -> SystemInfo:
    return SystemInfo(
        version="demo",
        pid=1,
        started_at=START,
        state_dir="",
        run_dir="",
        data_plane=label,
        control_plane=label,
        data_socket="",
        admin_socket="",
        on_asleep="wake",
        adapter_roots=[ROOT],
    )
