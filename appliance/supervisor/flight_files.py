"""The files of the flight recorders: where they lie, which are kept, and what they tell.

A dead epoch has a second file beside its recording, written by the supervisor: why it ended, and
its last lines. Reading needs no running appliance.
"""

import json
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from appliance.supervisor.admin.ports import NotFoundError
from appliance.supervisor.admin.schemas import FlightEvent, FlightReport, FlightStep
from engine.wire.flight import Flight, FlightError, FlightHeader, RecordedStep, read_flight

logger = logging.getLogger(__name__)

DIRECTORY = "flight"
KEPT_EPOCHS = 3
NUM_EVENTS = 50

_NAME = re.compile(r"(?P<engine>[a-z0-9-]{1,32})-(?P<epoch>[0-9]{1,12})\.(?P<kind>ring|end\.json)")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an epoch ended."""

    reason: str
    wanted: bool
    """Asked for, by an operator or at the end of the appliance."""
    log_tail: Sequence[str] = ()


class FlightFiles:
    """The recordings below a state directory.

    Args:
        directory: `<state directory>/flight`; made by the engines, mode 0700.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def new_path(self, engine_id: str, epoch: int) -> str:
        """Return where a new epoch shall write, and remove the recordings of old ones."""
        names = [name for name in self._names() if name["engine"] == engine_id]
        epochs = sorted({int(name["epoch"]) for name in names}, reverse=True)
        try:
            for old in epochs[KEPT_EPOCHS - 1 :]:
                self._path(engine_id, old).unlink(missing_ok=True)
                self._end_path(engine_id, old).unlink(missing_ok=True)
        except OSError as error:
            logger.warning("old flight recordings stay: %s", error)
        return str(self._path(engine_id, epoch))

    def engines(self) -> list[str]:
        """Return the engines that there are recordings of."""
        return sorted({name["engine"] for name in self._names() if name["kind"] == "ring"})

    def epochs(self, engine_id: str) -> list[int]:
        """Return the epochs that there are recordings of, newest first."""
        found = [
            int(name["epoch"])
            for name in self._names()
            if (name["engine"], name["kind"]) == (engine_id, "ring")
        ]
        return sorted(found, reverse=True)

    def _names(self) -> list[re.Match[str]]:
        try:
            found = [_NAME.fullmatch(path.name) for path in self._directory.iterdir()]
        except OSError:  # there is none, or what is there is no directory that can be read
            return []
        return [name for name in found if name is not None]

    def bury(self, engine_id: str, epoch: int, ending: Ending) -> None:
        """Keep how an epoch ended; a full disk is logged."""
        path = self._end_path(engine_id, epoch)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                json.dump(asdict(ending), file)
        except OSError as error:
            logger.warning("the end of %s is not written down: %s", engine_id, error)

    def read(self, engine_id: str, epoch: int, steps: int, events: int = NUM_EVENTS) -> Flight:
        """Read one recording. Raises FlightError."""
        return read_flight(self._path(engine_id, epoch), steps, events)

    def report(self, engine_id: str, steps: int, epoch: int | None = None) -> FlightReport:
        """Return the newest steps of an epoch.

        None: the newest that ended unasked, else the newest.

        Raises:
            NotFoundError: there is no such recording.
        """
        chosen = self._newest_crash(engine_id) if epoch is None else epoch
        if chosen is None:
            raise NotFoundError(f"there is no flight recording of {engine_id!r}")
        try:
            flight = self.read(engine_id, chosen, steps)
        except FlightError as error:
            raise NotFoundError(str(error)) from error
        return flight_report(flight, self._ending(engine_id, chosen))

    def _newest_crash(self, engine_id: str) -> int | None:
        epochs = self.epochs(engine_id)
        for epoch in epochs:
            ending = self._ending(engine_id, epoch)
            if ending is not None and not ending.wanted:
                return epoch
        return epochs[0] if epochs else None

    def _ending(self, engine_id: str, epoch: int) -> Ending | None:
        try:
            found: Any = json.loads(self._end_path(engine_id, epoch).read_text(encoding="utf-8"))
            return Ending(
                reason=str(found["reason"]),
                wanted=bool(found["wanted"]),
                log_tail=[str(line) for line in found["log_tail"]],
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _path(self, engine_id: str, epoch: int) -> Path:
        name = f"{engine_id}-{epoch}.ring"
        if not _NAME.fullmatch(name):
            raise NotFoundError(f"there is no flight recording of {engine_id!r}")
        return self._directory / name

    def _end_path(self, engine_id: str, epoch: int) -> Path:
        return self._path(engine_id, epoch).with_suffix(".end.json")


def flight_report(flight: Flight, ending: Ending | None) -> FlightReport:
    """Turn a recording into the answer of the admin API."""
    header = flight.header
    return FlightReport(
        engine=header.engine_id,
        epoch=header.epoch,
        pid=header.pid,
        alive=ending is None and _is_alive(header),
        last_exit=None if ending is None else ending.reason,
        steps=[_step(header, step) for step in flight.steps],
        events=[
            FlightEvent(
                at=_at(header, event.at_ns),
                kind=event.kind,
                text=event.text if event.times == 1 else f"{event.text} ({event.times} times)",
            )
            for event in flight.events
        ],
        log_tail=[] if ending is None else list(ending.log_tail),
    )


def _step(header: FlightHeader, step: RecordedStep) -> FlightStep:
    took_ns = None if step.end_ns is None else step.end_ns - step.start_ns
    return FlightStep(
        step=step.step,
        at=_at(header, step.start_ns),
        finished=step.finished,
        stage=step.stage,
        took_ms=None if took_ns is None else round(took_ns / _NS_PER_MS, 3),
        prefill_tokens=step.prefill_tokens,
        decode_tokens=step.decode_tokens,
        requests=step.requests,
        used_blocks=step.used_blocks,
        waiting=step.waiting,
        request_ids=list(step.request_ids),
    )


def _at(header: FlightHeader, reading_ns: int) -> datetime:
    return datetime.fromtimestamp(header.unix_ns(reading_ns) / 1e9, UTC)


def _is_alive(header: FlightHeader) -> bool:
    """Whether the process that writes it is there: without a supervisor nobody says so."""
    if header.ended_ns is not None or not Path(f"/proc/{header.pid}").exists():
        return False
    try:
        return _BOOT_ID.read_text().strip() == header.boot_id
    except OSError:
        return True
