"""Servers that are started once and rest between their turns; never do two of them work at once."""

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from comparison.servers import Server, ServerError
from comparison.subjects import Subject, has_one_size

RESERVE_BYTES = 1 << 30
WARM_UP_TOKENS = 8


class Fleet:
    """The servers that live.

    Args:
        start: Starts a subject for a number of streams and warms it up.
        available: Bytes of memory that are free.
    """

    def __init__(
        self,
        start: Callable[[Subject, int], Server],
        available: Callable[[], int] = lambda: psutil.virtual_memory().available,
    ) -> None:
        self._start = start
        self._available = available
        self._resting: OrderedDict[tuple[str, int], Server] = OrderedDict()
        self.commands: dict[str, str] = {}
        self.facts: dict[str, dict[str, Any]] = {}

    @contextmanager
    def turn(self, subject: Subject, streams: int) -> Iterator[Server]:
        """Give the subject's server, awake; it rests afterwards, or is ended if it failed."""
        key = (subject.name, 0 if has_one_size(subject) else streams)
        server = self._resting.pop(key, None)
        if server is None:
            self._make_room(subject.memory_bytes)
            server = self._start(subject, streams)
            self.commands.setdefault(subject.name, server.command)
            self.facts.setdefault(subject.name, server.facts())
        else:
            server.wake()
        try:
            yield server
        except BaseException:
            server.stop()
            raise
        server.rest()
        self._resting[key] = server

    def _make_room(self, needed_bytes: int) -> None:
        while self._resting and self._available() < needed_bytes + RESERVE_BYTES:
            _, longest = self._resting.popitem(last=False)
            longest.stop()

    def close(self) -> None:
        """End all."""
        for server in self._resting.values():
            with contextlib.suppress(ServerError, OSError):
                server.stop()
        self._resting.clear()
