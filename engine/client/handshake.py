"""Waits until engines are ready, and says in words what they are at if they are not."""

import threading
from collections.abc import Callable, Sequence

from engine.client.core_client import EngineStartError
from engine.wire.messages import EngineDead, EngineHello, EngineProgress, EngineReady, FromEngine

OnProgress = Callable[[str, EngineProgress], None]
"""Called with (engine id, progress), from any thread."""
_MEGABYTE = 1e6


class Handshake:
    """The starts of a client's engines; any thread may call it.

    Args:
        engine_ids: The engines that are waited for.
        on_progress: Gets what they report while they load.
    """

    def __init__(self, engine_ids: Sequence[str], on_progress: OnProgress | None = None) -> None:
        self.ready: dict[str, EngineReady] = {}
        """What each engine said of its capacity."""
        self._on_progress = on_progress
        self._at = dict.fromkeys(engine_ids, "its process was started")
        self._problem: str | None = None
        self._changed = threading.Condition()

    def note(self, engine_id: str, _epoch: int, message: FromEngine) -> None:
        """Take what an engine says, as `on_message` of a client."""
        with self._changed:
            match message:
                case EngineHello():
                    self._at[engine_id] = f"its process {message.pid} runs"
                case EngineProgress():
                    self._at[engine_id] = _phase(message)
                case EngineReady():
                    self.ready[engine_id] = message
                case EngineDead():
                    self._fail(f"engine {engine_id}: {message.reason}: {message.detail}")
                case _:
                    return
            self._changed.notify_all()
        if isinstance(message, EngineProgress) and self._on_progress is not None:
            self._on_progress(engine_id, message)

    def died(self, engine_id: str, status: int, last_lines: str) -> None:
        """An engine's process has ended; of no interest once it was ready."""
        with self._changed:
            if engine_id not in self.ready:
                at = self._at.get(engine_id, "start")
                self._fail(f"engine {engine_id} ended with {status} ({at})\n{last_lines}".rstrip())
            self._changed.notify_all()

    def give_up(self) -> None:
        """Let `wait` raise now."""
        with self._changed:
            self._fail("the start was given up")
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Wait until all are ready.

        Raises:
            EngineStartError: one died, or time is up.
        """
        with self._changed:
            self._changed.wait_for(self._is_settled, timeout_s)
            if self._problem is not None:
                raise EngineStartError(self._problem)
            if not self._is_settled():
                raise EngineStartError(self._too_late(timeout_s))

    def _is_settled(self) -> bool:
        return self._problem is not None or self.ready.keys() >= self._at.keys()

    def _fail(self, problem: str) -> None:
        self._problem = self._problem or problem

    def _too_late(self, timeout_s: float) -> str:
        late = [id_ for id_ in self._at if id_ not in self.ready]
        states = "; ".join(f"{id_}: {self._at[id_]}" for id_ in late)
        return f"not ready within {timeout_s:g} s: {states}"


def _phase(progress: EngineProgress) -> str:
    if progress.unit == "bytes" and progress.total:
        done, total = progress.done / _MEGABYTE, progress.total / _MEGABYTE
        return f"phase {progress.phase}, {done:.0f} of {total:.0f} MB"
    return f"phase {progress.phase}, {progress.done} of {progress.total} {progress.unit}"
