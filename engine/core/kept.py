"""What is made of immutable objects once, and used by every step that comes with them."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_KEPT = 512


class Kept(Generic[T]):
    """What was made of `SamplingParams`, or of their long tuples: the same over all steps.

    Kept by identity, together with the object itself: it is immutable, and while it is held no
    other object has its identity.
    """

    def __init__(self) -> None:
        self._made: OrderedDict[int, tuple[object, T]] = OrderedDict()

    def of(self, source: object, make: Callable[[], T]) -> T:
        """Return what is kept of `source`, or make it."""
        known = self._made.pop(id(source), None) or (source, make())
        self._made[id(source)] = known
        if len(self._made) > MAX_KEPT:
            self._made.popitem(last=False)
        return known[1]
