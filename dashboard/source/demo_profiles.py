"""Profiles of the invented engines."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from appliance.supervisor.admin.schemas import (
    EngineRow,
    Operation,
    ProfileFile,
    ProfileRow,
    Progress,
    StartProfileBody,
)

STEPS_PER_S: Final = 10
_BYTES_PER_STEP: Final = 410_000


@dataclass
class _Run:
    row: ProfileRow
    operation: Operation
    wanted: int
    done: float = 0.0


@dataclass
class DemoProfiles:
    """Rows, newest first; `step` moves what runs on."""

    rows: list[ProfileRow] = field(default_factory=list[ProfileRow])
    _runs: list[_Run] = field(default_factory=list[_Run])

    def begin(
        self, body: StartProfileBody, engine: EngineRow, operation: Operation, at: datetime
    ) -> ProfileRow:
        """Begin to record the next steps of an engine."""
        wanted = body.steps or round(body.duration_s * STEPS_PER_S)
        row = ProfileRow(
            id=f"prof-{len(self.rows) + 1}",
            engine=engine.id,
            epoch=engine.epoch,
            state="running",
            created_at=at,
            actor=operation.actor,
            steps=body.steps,
            first_step=engine.steps + 1,
            operation_id=operation.id,
        )
        self.rows.insert(0, row)
        self._runs.append(_Run(row, operation, wanted))
        return row

    def step(self, step_s: float, _at: datetime) -> Iterator[tuple[Operation, ProfileRow | None]]:
        """Yield operations that moved, with the row once it is done."""
        for run in list(self._runs):
            run.done = min(run.wanted, run.done + step_s * STEPS_PER_S)
            run.operation.phase = "recording"
            run.operation.progress = Progress(done=int(run.done), total=run.wanted, unit="steps")
            if run.done < run.wanted:
                yield run.operation, None
                continue
            self._runs.remove(run)
            self._finish(run.row, run.wanted)
            yield run.operation, run.row

    @staticmethod
    def _finish(row: ProfileRow, steps: int) -> None:
        row.state, row.steps = "done", steps
        row.last_step = (row.first_step or 0) + steps - 1
        num_bytes = steps * _BYTES_PER_STEP
        row.files = [
            ProfileFile(name="rank0.json.gz", kind="torch", num_bytes=num_bytes),
            ProfileFile(name="merged.json.gz", kind="merged", num_bytes=num_bytes + 61_000),
        ]
