"""Entries by their id, oldest first, bounded: what a list of events or log lines holds."""

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

EntryT = TypeVar("EntryT")

KEEP: Final = 2000


class Records(Generic[EntryT]):
    """Takes entries in any order, each once."""

    def __init__(self, keep: int = KEEP) -> None:
        self._keep = keep
        self._by_id: dict[int, EntryT] = {}
        self.was_asked = False
        """Whether an answer came, so that none means none."""

    @property
    def last_id(self) -> int | None:
        """The highest id."""
        return max(self._by_id, default=None)

    def add(self, entries: Iterable[tuple[int, EntryT]]) -> None:
        """Take entries that are not here yet; the oldest go where there are too many."""
        known = self._by_id
        fresh = {id_: entry for id_, entry in entries if id_ not in known}
        if not fresh:
            return
        merged = sorted({**known, **fresh}.items(), key=lambda item: item[0])
        self._by_id = dict(merged[-self._keep :])

    def entries(self) -> list[EntryT]:
        """Oldest first."""
        return list(self._by_id.values())
