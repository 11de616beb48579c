"""Scheduling policies: which waiting request is next, which running one gives way."""

from collections.abc import Sequence
from typing import Protocol

from engine.core.request import EngineRequest


class Policy(Protocol):
    """The order in which requests get a place and lose it. Pure: it only picks."""

    def next(self, waiting: Sequence[EngineRequest]) -> int:
        """Return the index of the waiting request to try next; `waiting` is not empty."""
        ...

    def victim(self, running: Sequence[EngineRequest]) -> int:
        """Return the index of the request to preempt; `running` is not empty."""
        ...


class FirstComeFirstServed:
    """The oldest request is next, the youngest gives way: the oldest always gets on."""

    def next(self, waiting: Sequence[EngineRequest]) -> int:
        """Return the head: requests wait in the order of their arrival."""
        return 0

    def victim(self, running: Sequence[EngineRequest]) -> int:
        """Return the tail: requests run in the order of their arrival."""
        return len(running) - 1
