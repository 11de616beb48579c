"""Text to token ids and back; control tokens appear only where the caller means them."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import tokenizers

if TYPE_CHECKING:
    from engine.checkpoint.checkpoint import Checkpoint

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START = "\u2581"
_SENTENCEPIECE_DECODERS = {"ByteFallback", "Metaspace", "Replace"}


class TokenizerError(Exception):
    """This checkpoint's tokenizer cannot be used."""


class Tokenizer:
    """The tokenizer of one checkpoint, safe to share between threads.

    Two of the library's tokenizers are kept, because the treatment of control tokens is a setting
    of the object: one reads them in text (for what a chat template wrote), the other takes all
    text for plain text (for what a user wrote).

    Raises:
        TokenizerError: its decoder is of a family whose bytes are not known here.
    """

    def __init__(self, checkpoint: "Checkpoint") -> None:
        self._reads_control = checkpoint.tokenizer()
        self._reads_control.no_truncation()  # some files cut and pad what they are given
        self._reads_control.no_padding()
        self._plain = _twin(self._reads_control)
        self._plain.encode_special_tokens = True
        self._added = self._reads_control.get_added_tokens_decoder()
        self._is_byte_level = _is_byte_level(self._reads_control)
        self._bytes: dict[int, bytes] = {}
        self.vocab_size: int = checkpoint.config.vocab_size
        self.longest_token_chars: int = max(map(len, self._plain.get_vocab()), default=1)
        """No token stands for more characters of a text."""
        self.bos_token_id: int | None = checkpoint.bos_token_id
        self.bos_token: str | None = checkpoint.bos_token
        self.eos_token_ids: tuple[int, ...] = checkpoint.eos_token_ids
        self.eos_token: str | None = checkpoint.eos_token
        self.chat_template: str | None = checkpoint.chat_template
        self._first_ids = self._bos_ids(always=checkpoint.add_bos)
        self.control_tokens: dict[str, int] = {
            token.content: token_id for token_id, token in self._added.items() if token.special
        }
        """Text and id of every token that only a template may produce."""
        self.control_token_ids: frozenset[int] = frozenset(self.control_tokens.values())

    @classmethod
    def load(cls, model_path: Path) -> "Tokenizer":
        """Read the tokenizer of a checkpoint; blocks for a tenth of a second or more."""
        # The reader of GGUF files imports numpy: a process pays for it when a model is known.
        from engine.checkpoint.checkpoint import open_checkpoint  # noqa: PLC0415

        return cls(open_checkpoint(model_path))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Encode text that a user wrote: a control token typed in it is plain text.

        `add_special_tokens` puts the beginning-of-sequence token first, if the checkpoint says so.

        Raises:
            ValueError: the text has a lone surrogate.
        """
        ids = self._encode_plain(text)
        return self._first_ids + ids if add_special_tokens else ids

    def encode_rendered(self, text: str, user_spans: Mapping[str, str]) -> list[int]:
        """Encode what a chat template wrote: its control tokens become their ids.

        Args:
            text: The rendered chat.
            user_spans: What stands for which original text. The originals are put back after the
                control tokens were found and before the rest is encoded, so that they merge with
                their neighbours as if nothing had been replaced.

        Raises:
            ValueError: the text has a lone surrogate.
        """
        if not user_spans:
            return _encode(self._reads_control, text)
        restore = str.maketrans(dict(user_spans))
        ids: list[int] = []
        at = 0
        for found in self._control_pattern.finditer(text):
            ids += self._encode_plain(text[at : found.start()].translate(restore))
            ids.append(self.control_tokens[found[found.lastindex or 0]])
            at = found.end()
        return ids + self._encode_plain(text[at:].translate(restore))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids.

        Raises:
            ValueError: an id is not in the vocabulary.
        """
        for token_id in token_ids:
            if not 0 <= token_id < self.vocab_size:
                raise ValueError(f"token id {token_id} is not in 0..{self.vocab_size - 1}")
        return self._plain.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """Return one token as text, never empty; a part of a character reads as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace") or f"<token {token_id}>"

    def token_bytes(self, token_id: int) -> bytes:
        """Return the exact bytes that a token adds to the text.

        Empty for an id without a token: models pad their vocabulary.
        """
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._bytes_of(token_id)
        return known

    def _bos_ids(self, *, always: bool) -> list[int]:
        """Return what goes in front of a text. Some tokenizers do it without saying so."""
        if self.bos_token_id is None:
            return []
        first = self._reads_control.encode("", add_special_tokens=True).ids[:1]
        return [self.bos_token_id] if always or first == [self.bos_token_id] else []

    def _encode_plain(self, text: str) -> list[int]:
        ids = _encode(self._plain, text)
        if self._typed_ids.isdisjoint(ids):
            return ids
        return self._encode_cut(text)

    def _encode_cut(self, text: str) -> list[int]:
        """Encode text whose control tokens are also ordinary entries of the vocabulary.

        Unigram models know them so. Cut behind its first character, none is whole any more.
        """
        found = self._control_pattern.search(text)
        if found is None:
            return _encode(self._plain, text)
        cut = found.start(found.lastindex or 0) + 1
        return self._encode_plain(text[:cut]) + self._encode_plain(text[cut:])

    @cached_property
    def _typed_ids(self) -> frozenset[int]:
        """Control tokens that plain text must never give: all but the one for unknown text."""
        unknown = cast("object", getattr(self._plain.model, "unk_token", None))
        return frozenset(id_ for text, id_ in self.control_tokens.items() if text != unknown)

    @cached_property
    def _control_pattern(self) -> re.Pattern[str]:
        """Match a control token, and the white space that it swallows; a group is the token."""
        tokens: list[tokenizers.AddedToken] = [t for t in self._added.values() if t.special]
        longest_first = sorted(tokens, key=lambda token: -len(token.content))
        return re.compile("|".join(map(_token_pattern, longest_first)) or r"(?!)")

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].content.encode()
        piece = self._plain.id_to_token(token_id)
        if piece is None:
            return b""
        if self._is_byte_level:
            return _byte_level_bytes(piece)
        if byte := _BYTE_TOKEN.fullmatch(piece):
            return bytes.fromhex(byte[1])
        return piece.replace(_WORD_START, " ").encode()


def _twin(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return another tokenizer over the same vocabulary: a copy takes seconds and 100 MB.

    It adds nothing to a text by itself.
    """
    twin = tokenizers.Tokenizer(tokenizer.model)
    twin.normalizer = tokenizer.normalizer  # pyright: ignore[reportAttributeAccessIssue]
    twin.pre_tokenizer = tokenizer.pre_tokenizer  # pyright: ignore[reportAttributeAccessIssue]
    twin.decoder = tokenizer.decoder  # pyright: ignore[reportAttributeAccessIssue]
    by_id = sorted(tokenizer.get_added_tokens_decoder().items())  # new ones get ids in this order
    added: list[tokenizers.AddedToken] = [token for _, token in by_id]
    # many at once: each call builds an automaton of them all
    for is_special, group in groupby(added, attrgetter("special")):
        (twin.add_special_tokens if is_special else twin.add_tokens)(list(group))
    return twin


def _encode(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    try:
        # A batch of one, because `encode` keeps the interpreter's lock: two megabytes of text then
        # stop every other request for seconds.
        return tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    except TypeError as error:  # the binding's word for a string that has no UTF-8
        raise ValueError("the text holds half a surrogate pair") from error


def _token_pattern(token: tokenizers.AddedToken) -> str:
    before, after = (r"\s*" if swallows else "" for swallows in (token.lstrip, token.rstrip))
    return f"{before}({re.escape(token.content)}){after}"


def _is_byte_level(tokenizer: tokenizers.Tokenizer) -> bool:
    """Tell the two families of pieces apart: GPT-2's byte alphabet, and SentencePiece's."""
    kinds = _decoder_kinds(tokenizer)
    if "ByteLevel" in kinds:
        return True
    if kinds & _SENTENCEPIECE_DECODERS:
        return False
    raise TokenizerError(f"no support for tokenizers that decode by {sorted(kinds) or 'nothing'}")


def _decoder_kinds(tokenizer: tokenizers.Tokenizer) -> set[str]:
    decoder = cast("Any", tokenizer.decoder)
    if decoder is None:
        return set()
    # The library's decoder objects tell what they are only by their serialised form.
    state = cast("dict[str, Any]", json.loads(decoder.__getstate__()))
    inner = cast("list[dict[str, Any]]", state.get("decoders", []))
    return {str(part["type"]) for part in (state, *inner)}


def _byte_alphabet() -> dict[str, int]:
    """Return which byte each character stands for in byte-level vocabularies.

    Printable Latin-1 characters are themselves; the other bytes count up from U+0100.

    Source:
        Radford et al. 2019, GPT-2, `bytes_to_unicode`.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _byte_level_bytes(piece: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in piece])
    except KeyError:
        return piece.encode()  # an entry that was added to the vocabulary as plain text
