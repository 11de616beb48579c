"""Rebuilds the Hugging Face tokenizer from the vocabulary in a GGUF file."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from engine.checkpoint.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of tokens, as `gguf.TokenType` numbers them."""
_KEEPS_SPACE = ("<unk>", "<s>", "<|endoftext|>")


class GgufVocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """The tokenizer's data as GGUF stores it."""

    model: str
    """`tokenizer.ggml.model`: the kind of tokenizer."""
    pre: str
    """`tokenizer.ggml.pre`: how text is split before merging; for byte-level BPE."""
    tokens: Sequence[str]
    token_types: Sequence[int]
    merges: Sequence[str] = ()
    """Of byte-level BPE."""
    scores: Sequence[float] = ()
    """Of SentencePiece: the higher, the earlier a token is merged."""
    unknown_id: int | None = None
    adds_space: bool = True
    """SentencePiece: a text begins with a space of its own."""
    control_swallows_space: bool = False
    """White space after control tokens is dropped, as Phi-3 does."""

    def __post_init__(self) -> None:
        """Check that there is one type for each token.

        Raises:
            CheckpointError: there is not.
        """
        if len(self.tokens) != len(self.token_types):
            raise CheckpointError("the GGUF vocabulary has not one type for each token")

    def tokens_of(self, *wanted: int) -> list[str]:
        """Return the tokens of some types."""
        typed = zip(self.tokens, self.token_types, strict=True)
        return [token for token, kind in typed if kind in wanted]


def build_tokenizer(vocabulary: GgufVocabulary) -> "Tokenizer":
    """Build a tokenizer equal to the one the file was converted from.

    Raises:
        UnsupportedModelError: another kind of tokenizer or pre-tokenizer.
        CheckpointError: the vocabulary contradicts itself.
    """
    match vocabulary.model:
        case "gpt2":
            from engine.checkpoint.gguf_byte_bpe import byte_level_bpe  # noqa: PLC0415 - not both

            tokenizer = byte_level_bpe(vocabulary)
        case "llama":
            from engine.checkpoint.gguf_sentencepiece import sentencepiece_bpe  # noqa: PLC0415

            tokenizer = sentencepiece_bpe(vocabulary)
        case _:
            raise UnsupportedModelError(
                f"GGUF tokenizer {vocabulary.model!r} is not supported; supported: gpt2, llama"
            )
    tokenizer.add_special_tokens(_control_tokens(vocabulary))
    tokenizer.add_tokens(_user_tokens(vocabulary))
    return tokenizer


def _control_tokens(vocabulary: GgufVocabulary) -> list["AddedToken"]:
    from tokenizers import AddedToken  # noqa: PLC0415

    swallows = vocabulary.control_swallows_space
    return [
        AddedToken(
            text, special=True, normalized=False, rstrip=swallows and text not in _KEEPS_SPACE
        )
        for text in vocabulary.tokens_of(CONTROL)
    ]


def _user_tokens(vocabulary: GgufVocabulary) -> list["AddedToken"]:
    from tokenizers import AddedToken  # noqa: PLC0415

    return [AddedToken(text, normalized=False) for text in vocabulary.tokens_of(USER_DEFINED)]
