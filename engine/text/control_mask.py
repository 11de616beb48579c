"""Keeps what users wrote apart from the control tokens that a chat template writes.

Before a chat is rendered, every control token in a user's strings is replaced by one private-use
character, chosen at random among those that the chat does not contain. In the rendered text
each control token that can be read is then the template's own.

A control token could also be put together: by a string's end and the template's next words, or by
two strings. So the end of a string that begins a control token, and the beginning of a string that
ends one, are replaced as well.
"""

import re
import secrets
from collections.abc import Iterable, Iterator
from typing import Any, cast

from engine.text.template_sandbox import TemplateError

_FIRST_PRIVATE, _LAST_PRIVATE = 0xF0000, 0x10FFFD
"""The two private-use planes: 131 068 characters that no tokenizer or template gives a meaning."""
_MAX_PICKS = 1000


class ControlMask:
    """Knows the control tokens of one tokenizer."""

    def __init__(self, control_tokens: Iterable[str]) -> None:
        tokens = sorted(control_tokens, key=len, reverse=True)
        self.whole = re.compile("|".join(map(re.escape, tokens)) or r"(?!)")
        self.beginnings = {token[:length] for token in tokens for length in range(1, len(token))}
        self.ends = {token[length:] for token in tokens for length in range(1, len(token))}
        self.longest_part = max(map(len, tokens), default=1) - 1


class MaskedChat:
    """One chat whose control tokens are replaced; `originals` says what stands for what."""

    def __init__(self, mask: ControlMask, messages: list[dict[str, Any]]) -> None:
        self._mask = mask
        self._written = list(_strings(messages))
        self._stand_ins: dict[str, str] = {}
        self.messages: list[dict[str, Any]] = [
            {key: value if key == "role" else self._masked(value) for key, value in message.items()}
            for message in messages
        ]

    @property
    def originals(self) -> dict[str, str]:
        """Stand-in to original text."""
        return {stand_in: text for text, stand_in in self._stand_ins.items()}

    def stand_in(self, text: str) -> str:
        """Return the character that stands for `text` in this chat."""
        known = self._stand_ins.get(text)
        if known is None:
            known = self._stand_ins[text] = self._unused_character()
        return known

    def _masked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._masked_text(value)
        if isinstance(value, dict):
            pairs = cast("dict[str, Any]", value).items()
            return {self._masked_whole(key): self._masked(inner) for key, inner in pairs}
        if isinstance(value, list | tuple):
            return [self._masked(inner) for inner in cast("list[Any]", value)]
        if value is None or isinstance(value, bool | int | float):
            return value
        raise TemplateError(f"a message holds a {type(value).__name__}, which is not JSON")

    def _masked_text(self, text: str) -> str:
        text = self._masked_whole(text)
        if tail := _longest(self._mask.beginnings, (text[-size:] for size in self._sizes(text))):
            text = text[: -len(tail)] + self.stand_in(tail)
        if head := _longest(self._mask.ends, (text[:size] for size in self._sizes(text))):
            text = self.stand_in(head) + text[len(head) :]
        return text

    def _masked_whole(self, text: str) -> str:
        return self._mask.whole.sub(lambda found: self.stand_in(found[0]), text)

    def _sizes(self, text: str) -> range:
        return range(min(len(text), self._mask.longest_part), 0, -1)

    def _unused_character(self) -> str:
        taken = set(self._stand_ins.values())
        for _ in range(_MAX_PICKS):
            character = chr(_FIRST_PRIVATE + secrets.randbelow(_LAST_PRIVATE - _FIRST_PRIVATE + 1))
            if character not in taken and not any(character in text for text in self._written):
                return character
        raise TemplateError("the chat is full of private-use characters")


def _longest(parts: set[str], candidates: Iterable[str]) -> str | None:
    return next((candidate for candidate in candidates if candidate in parts), None)


def _strings(value: Any) -> Iterator[str]:
    """Yield every string in plain data, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in cast("dict[str, Any]", value).items():
            yield key
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in cast("list[Any]", value):
            yield from _strings(inner)
