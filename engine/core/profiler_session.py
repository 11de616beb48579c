"""One profile: the steps that it covers, and the file that it leaves.

Torch's events carry Unix times; what a clock reading is on that axis is written into the file, see
`AXIS_KEY`.
"""

import contextlib
import gzip
import json
import logging
import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.clock import now_ns
from engine.wire.calls import ProfileReport, StartProfile

if TYPE_CHECKING:
    from engine.core.profiler_torch import TorchProfile

logger = logging.getLogger(__name__)

AXIS_KEY = "quarterdeck"
"""In the file, beside `traceEvents`: whose profile it is, and `unix_offset_ns`: Unix time minus
clock reading."""
STEP_NAME = "engine.step"
MAX_STEPS = 200
"""A step of a small model has thousands of events; all are held in memory until the end, and for
each the loop stands still for some microseconds then."""
MAX_HEAVY_STEPS = 50
"""With stacks or memory."""
MAX_S = 600.0
GZIP_LEVEL = 3
CHUNK_BYTES = 1 << 20

_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")


class ProfileRefusedError(Exception):
    """This profile cannot be taken; the message says why."""


class ProfileSession:
    """Records from its construction on; `stop`, then `write`, end it.

    All but `write` belong to the loop's thread.

    Args:
        call: What is asked for.
        engine_id: Names the file.
        is_cuda: Whether there are kernels to record.

    Raises:
        ProfileRefusedError: the call is out of bounds or names a place that is none.
    """

    def __init__(self, call: StartProfile, engine_id: str, *, is_cuda: bool) -> None:
        self._call = call
        self._name = f"{call.profile_id}-{engine_id}-rank0.json.gz"
        self._max_steps = _max_steps(call)
        self._steps = 0
        self._first_step: int | None = None
        self._last_step: int | None = None
        self._ended_ns = 0
        self._torch = _start_torch(call, is_cuda=is_cuda)
        self._started_ns = now_ns()
        self._deadline_ns = self._started_ns + int(call.max_s * 1e9)
        self._note_axis(engine_id)

    def step(self, number: int) -> contextlib.AbstractContextManager[Any]:
        """Return a span around the execution of a step."""
        if self._first_step is None:
            self._first_step = number
        self._last_step = number
        self._steps += 1
        return self._torch.span(f"{STEP_NAME} {number}")

    def is_over(self, now: int) -> bool:
        """Whether it has what it was asked for."""
        return self._steps >= self._max_steps or now >= self._deadline_ns

    def stop(self) -> None:
        """Record no more."""
        self._torch.stop()
        self._ended_ns = now_ns()

    def write(self) -> ProfileReport:
        """Write the file; takes seconds, any thread may do it.

        Raises:
            OSError: it could not be written; nothing is left of it.
        """
        directory = Path(self._call.directory)
        raw, fresh = directory / f".{self._name}.raw", directory / f".{self._name}.new"
        try:
            self._torch.save(raw)
            with raw.open("rb") as source, gzip.open(fresh, "wb", GZIP_LEVEL) as target:
                shutil.copyfileobj(source, target, CHUNK_BYTES)
            num_bytes = fresh.stat().st_size
            fresh.replace(directory / self._name)
        finally:
            raw.unlink(missing_ok=True)
            fresh.unlink(missing_ok=True)
        return ProfileReport(
            profile_id=self._call.profile_id,
            files=(self._name,),
            num_bytes=num_bytes,
            first_step=self._first_step,
            last_step=self._last_step,
            started_ns=self._started_ns,
            ended_ns=self._ended_ns,
        )

    def _note_axis(self, engine_id: str) -> None:
        facts = {
            "profile_id": self._call.profile_id,
            "engine": engine_id,
            "unix_offset_ns": time.time_ns() - now_ns(),
        }
        self._torch.note(AXIS_KEY, json.dumps(facts))


class Writing:
    """Writes a stopped session's file in a thread.

    Args:
        session: Has been stopped.
        on_done: Called from the thread at its end.
    """

    def __init__(self, session: ProfileSession, on_done: Callable[[], None]) -> None:
        self.report: ProfileReport | None = None
        self.error: str | None = None
        self._session = session
        self._on_done = on_done
        threading.Thread(target=self._run, name="profile-writer", daemon=True).start()

    @property
    def is_over(self) -> bool:
        """Whether it has a report or an error."""
        return self.report is not None or self.error is not None

    def _run(self) -> None:
        try:
            self.report = self._session.write()
        except Exception as error:
            logger.exception("the profile could not be written")
            self.error = f"the profile could not be written: {error}"
        self._on_done()


def _max_steps(call: StartProfile) -> int:
    is_heavy = call.with_stacks or call.with_memory
    most = MAX_HEAVY_STEPS if is_heavy else MAX_STEPS
    if not _SAFE_ID.fullmatch(call.profile_id):
        raise ProfileRefusedError(f"{call.profile_id!r} is no id for a profile")
    if not Path(call.directory).is_dir():
        raise ProfileRefusedError(f"{call.directory} is no directory")
    if not 0 < call.max_s <= MAX_S:
        raise ProfileRefusedError(f"max_s must be above 0 and at most {MAX_S:g}")
    if call.steps is not None and not 1 <= call.steps <= most:
        detail = " with stacks or memory" if is_heavy else ""
        raise ProfileRefusedError(f"steps{detail} must be 1 to {most}, got {call.steps}")
    return call.steps or most


def _start_torch(call: StartProfile, *, is_cuda: bool) -> "TorchProfile":
    from engine.core.profiler_torch import TorchProfile  # noqa: PLC0415 - imports torch

    return TorchProfile(is_cuda=is_cuda, with_stacks=call.with_stacks, with_memory=call.with_memory)
