"""The seam between an engine's logic and a client in the same process."""

import threading
from typing import TYPE_CHECKING

from engine.client.core_client import OnMessage
from engine.client.reply_desk import ReplyDesk
from engine.client.sync_mp import OnHop
from engine.config import EngineConfig
from engine.wire.hops import HopRecord, StepRecord
from engine.wire.messages import EngineProgress

if TYPE_CHECKING:
    from engine.core.mail import Outgoing


class InprocShell:
    """What the engine's logic needs of the process around it; see `mail.Shell`."""

    def __init__(
        self, config: EngineConfig, desk: ReplyDesk, on_message: OnMessage, on_hop: OnHop
    ) -> None:
        self.woken = threading.Event()
        self._config = config
        self._desk = desk
        self._on_message = on_message
        self._on_hop = on_hop

    def post(self, outgoing: "Outgoing") -> None:
        """Give a message to the client at once."""
        self._desk.take(self._config.engine_id, self._config.epoch, outgoing.body)

    def record(self, record: HopRecord | StepRecord) -> None:
        """Keep a hop; steps are of no interest to a client."""
        if not isinstance(record, StepRecord):
            self._on_hop(record)

    @property
    def recording(self) -> bool:
        """Always: a client that wants no hops drops them."""
        return True

    def set_recording(self, *, recording: bool) -> None:
        """There is no supervisor to spare."""

    def beat(self, phase: str) -> None:
        """Nobody watches an engine in its own process."""

    def wake(self) -> None:
        """Make the loop look again; any thread may call it."""
        self.woken.set()

    def progress(self, phase: str, done: int, total: int) -> None:
        """Report how far a start or a wake is."""
        unit = "bytes" if phase in {"weights", "kv_cache"} else "steps"
        message = EngineProgress(phase=phase, done=done, total=total, unit=unit)
        self._on_message(self._config.engine_id, self._config.epoch, message)
