"""What is made of immutable objects once, and used by every step that comes with them."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """What was made of `SamplingParams`, or of their long tuples: the same over all steps.

    Kept by identity, together with the object itself: it is immutable, and while it is held no
    other object has its identity. A request's lists may take megabytes, so nothing is held that
    the last round did not ask for.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[object, T]] = {}
        self._asked: dict[int, tuple[object, T]] = {}
        """In this round."""

    def of(self, source: object, make: Callable[[], T]) -> T:
        """Return what is kept of `source`, or make it."""
        key = id(source)
        known = self._asked.get(key) or self._last.get(key) or (source, make())
        self._asked[key] = known
        return known[1]

    def end_round(self) -> None:
        """Let go of what was not asked for since the last call."""
        self._last, self._asked = self._asked, {}
