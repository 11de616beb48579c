"""Finds stop strings in text that comes in pieces, and holds back no more than it must."""

from collections.abc import Sequence
from typing import NamedTuple


class Matched(NamedTuple):
    """Text that is safe to send, and the stop string that ended it, if one did."""

    text: str
    stop: str | None


class StopMatcher:
    """Watches one text for stop strings.

    The stop string that is completed first wins, whatever the order of `stops`; of those that are
    completed by the same character, the longest. The text is cut before it, or behind it with
    `include_stop`. Text is held back only as long as it may be the beginning of a stop string.

    Args:
        stops: Strings that end the text; empty ones are ignored.
        include_stop: Keep the stop string in the text.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        self._stops = [stop for stop in stops if stop]
        self._include_stop = include_stop
        self._held = ""

    def push(self, text: str, *, may_stop: bool = True) -> Matched:
        """Take the next piece of text; with `may_stop` off, what it completes is let through."""
        if not self._stops:
            return Matched(text, None)
        seen = len(self._held)
        text = self._held + text
        if may_stop and (found := self._first_completed(text, seen)):
            end, stop = found
            self._held = ""
            return Matched(text[: end if self._include_stop else end - len(stop)], stop)
        return Matched(self._release(text), None)

    def flush(self) -> str:
        """Return what is still held back: the text ends here."""
        held, self._held = self._held, ""
        return held

    def _first_completed(self, text: str, seen: int) -> tuple[int, str] | None:
        """Find the stop string that ends first behind the `seen` characters judged before."""
        found: list[tuple[int, int, str]] = []
        for stop in self._stops:
            start = text.find(stop, max(0, seen - len(stop) + 1))
            if start >= 0:
                found.append((start + len(stop), -len(stop), stop))
        if not found:
            return None
        end, _, stop = min(found)
        return end, stop

    def _release(self, text: str) -> str:
        held = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that is a beginning, not all, of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
