"""Words that an answer may not contain, as the token sequences that may not be completed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.text.tokenizer import Tokenizer


def bad_word_tokens(tokenizer: "Tokenizer", words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the sequences of words: at the beginning of a text, and inside of one.

    Inside, a word follows a space, which most vocabularies have as a part of its first token.
    """
    spellings = (spelling for word in words for spelling in (word.lstrip(), f" {word.lstrip()}"))
    sequences = (tuple(tokenizer.encode(text, add_special_tokens=False)) for text in spellings)
    return tuple(dict.fromkeys(filter(None, sequences)))
