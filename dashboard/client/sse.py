"""Server-sent events: an incremental parser and the pace of reconnecting."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

MAX_EVENT_CHARS: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event, or (`name` empty) a comment, which only says that the line is alive."""

    name: str
    data: str = ""
    id: str | None = None


class EventTooLargeError(Exception):
    """An event without an end: the other side does not speak this protocol."""


class EventParser:
    """Turns lines into events.

    `last_id` is the id of the last complete event: what a reconnect sends as `Last-Event-ID`.
    """

    def __init__(self, last_id: str | None = None) -> None:
        self.last_id = last_id
        self.retry_s: float | None = None
        self._name = ""
        self._data: list[str] = []
        self._chars = 0
        self._id: str | None = None

    def feed(self, line: str) -> Iterator[ServerEvent]:
        """Take one line without its end; yields an event when the line completes one."""
        if not line:
            yield from self._finish()
        elif line.startswith(":"):
            yield ServerEvent(name="", data=line[1:].strip())
        else:
            field, _, value = line.partition(":")
            self._take(field, value.removeprefix(" "))

    def _take(self, field: str, value: str) -> None:
        match field:
            case "event":
                self._name = value
            case "data":
                self._append(value)
            case "id" if "\0" not in value:
                self._id = value
            case "retry" if value.isdecimal():
                self.retry_s = int(value) / 1000
            case _:
                return

    def _append(self, value: str) -> None:
        self._chars += len(value)
        if self._chars > MAX_EVENT_CHARS:
            raise EventTooLargeError(f"an event of more than {MAX_EVENT_CHARS} characters")
        self._data.append(value)

    def _finish(self) -> Iterator[ServerEvent]:
        if self._id is not None:
            self.last_id = self._id
        if self._data:
            yield ServerEvent(self._name or "message", "\n".join(self._data), self._id)
        self._name, self._data, self._chars, self._id = "", [], 0, None


class Backoff:
    """Waits between attempts: doubling, capped, with jitter so that clients do not return at once.

    Args:
        first_s: The first wait, before jitter.
        most_s: The longest wait, before jitter.
        uniform: Gives a number between its two arguments.
    """

    def __init__(
        self,
        first_s: float = 0.25,
        most_s: float = 5.0,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._uniform = uniform
        self._attempts = 0

    def next_s(self) -> float:
        """The next wait, in seconds: between half and all of the doubled one."""
        full_s = min(self._most_s, self._first_s * 2.0**self._attempts)
        self._attempts = min(self._attempts + 1, 16)
        return self._uniform(full_s / 2, full_s)

    def reset(self) -> None:
        """The connection stood: start over with short waits."""
        self._attempts = 0
