"""The register of long verbs: who asked for what, how it goes, and what came out."""

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from appliance.supervisor.admin.ports import NotFoundError
from appliance.supervisor.admin.schemas import Operation, OperationKind, Progress
from engine.wire.header import TraceContext, new_context

Kind = OperationKind

MAX_OPERATIONS = 200
_ENDED = frozenset({"done", "failed", "canceled"})


class OperationRegistry:
    """Holds the newest operations; running ones are never dropped.

    Args:
        publish: Gets each operation at each change.
    """

    def __init__(self, publish: Callable[[Operation], None], limit: int = MAX_OPERATIONS) -> None:
        self._publish = publish
        self._limit = limit
        self._operations: dict[str, Operation] = {}
        self._contexts: dict[str, TraceContext] = {}
        self._ended: dict[str, asyncio.Event] = {}

    def all(self) -> list[Operation]:
        """Return them, newest first."""
        return list(reversed(self._operations.values()))

    def get(self, operation_id: str) -> Operation:
        """Return one. Raises NotFoundError."""
        found = self._operations.get(operation_id)
        if found is None:
            raise NotFoundError(f"there is no operation {operation_id}")
        return found

    def context(self, operation_id: str) -> TraceContext:
        """Return the trace position of an operation: the parent of its messages."""
        return self._contexts[operation_id]

    async def wait(self, operation_id: str, wait_s: float) -> Operation:
        """Return an operation at its end, or as it is after `wait_s`. Raises NotFoundError."""
        self.get(operation_id)
        ended = self._ended[operation_id]
        with contextlib.suppress(TimeoutError):  # the caller gets it as it is
            async with asyncio.timeout(wait_s):
                await ended.wait()
        return self.get(operation_id)

    def running(self, target: str, kind: Kind | None = None) -> Operation | None:
        """Return the newest operation of this target that has not ended."""
        for operation in reversed(self._operations.values()):
            is_asked_for = operation.target == target and kind in (None, operation.kind)
            if is_asked_for and operation.state not in _ENDED:
                return operation
        return None

    def begin(self, kind: Kind, target: str, actor: str) -> Operation:
        """Register a running operation with a trace of its own."""
        context = new_context()
        operation = Operation(
            id=f"op-{uuid.uuid4().hex[:16]}",
            kind=kind,
            target=target,
            state="running",
            actor=actor,
            trace_id=context.trace_id,
            created_at=_now(),
        )
        self._contexts[operation.id] = context
        self._ended[operation.id] = asyncio.Event()
        self._put(operation)
        self._forget_old()
        return operation

    def already_done(self, kind: Kind, target: str, actor: str, phase: str) -> Operation:
        """Register a verb that found nothing to do."""
        operation = self.begin(kind, target, actor)
        self.update(operation.id, phase=phase)
        return self.finish(operation.id, {"already": phase})

    def update(
        self, operation_id: str, *, phase: str | None, progress: Progress | None = None
    ) -> None:
        """Say how far it is; the same as before is not published again."""
        before = self.get(operation_id)
        changes = {"phase": phase, "progress": progress}
        after = before.model_copy(update=changes)
        if after != before and before.state not in _ENDED:
            self._put(after)

    def finish(self, operation_id: str, result: dict[str, Any]) -> Operation:
        """End it well."""
        return self._end(operation_id, {"state": "done", "result": result})

    def fail(self, operation_id: str, error: str) -> Operation:
        """End it badly."""
        return self._end(operation_id, {"state": "failed", "error": error})

    def _end(self, operation_id: str, changes: dict[str, Any]) -> Operation:
        before = self.get(operation_id)
        if before.state in _ENDED:
            return before
        ended = before.model_copy(update={**changes, "progress": None, "ended_at": _now()})
        self._put(ended)
        self._ended[operation_id].set()
        return ended

    def _put(self, operation: Operation) -> None:
        self._operations[operation.id] = operation
        self._publish(operation)

    def _forget_old(self) -> None:
        too_many = len(self._operations) - self._limit
        ended = [op.id for op in self._operations.values() if op.state in _ENDED]
        for operation_id in ended[: max(0, too_many)]:
            del self._operations[operation_id]
            del self._contexts[operation_id]
            del self._ended[operation_id]


def _now() -> datetime:
    return datetime.now(UTC)
