"""Frames of a stream: JSON behind `data:`, and templates of those that differ in one text."""

from typing import Final

import msgspec

_JSON: Final = msgspec.json.Encoder()
_MARK: Final = b"\x00"
"""A byte that JSON never has: control characters in strings are written as escapes."""
HOLE: Final = msgspec.Raw(_MARK)
"""Stands in a template's payload where the text will be."""


def frame(payload: object) -> bytes:
    """Return one data frame."""
    return b"data: " + _JSON.encode(payload) + b"\n\n"


class FrameTemplate:
    """A frame for each token, without building and encoding the same objects again.

    Args:
        payload: As of `frame`, with `HOLE` in the place of one string.
    """

    __slots__ = ("_after", "_before")

    def __init__(self, payload: object) -> None:
        self._before, self._after = frame(payload).split(_MARK)

    def fill(self, text: str) -> bytes:
        """Return the frame that says `text`."""
        return self._before + _JSON.encode(text) + self._after
