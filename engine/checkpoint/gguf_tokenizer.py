"""Rebuilds the Hugging Face tokenizer from the vocabulary in a GGUF file."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from engine.checkpoint.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

_CONTROL, _USER_DEFINED = 3, 4
_SUPPORTED_PRE = ("gpt-2", "smollm")


class GgufVocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """The tokenizer's data as GGUF stores it."""

    model: str
    """`tokenizer.ggml.model`: the kind of tokenizer."""
    pre: str
    """`tokenizer.ggml.pre`: how text is split before merging."""
    tokens: Sequence[str]
    token_types: Sequence[int]
    merges: Sequence[str]


def build_tokenizer(vocabulary: GgufVocabulary) -> "Tokenizer":
    """Build a byte-level BPE tokenizer equal to the one the file was converted from.

    Raises:
        UnsupportedModelError: another kind of tokenizer or pre-tokenizer.
        CheckpointError: the vocabulary contradicts itself.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models  # noqa: PLC0415

    if vocabulary.model != "gpt2":
        raise UnsupportedModelError(
            f"GGUF tokenizer {vocabulary.model!r} is not supported; supported: gpt2"
        )
    if len(vocabulary.tokens) != len(vocabulary.token_types):
        raise CheckpointError("the GGUF vocabulary has not one type for each token")
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    pre_tokenizer = _pre_tokenizer(vocabulary.pre)
    try:
        tokenizer = Tokenizer(models.BPE(vocab=ids, merges=_pairs(vocabulary.merges)))
    except Exception as error:  # the binding raises plain Exception
        raise CheckpointError(f"the GGUF vocabulary is inconsistent: {error}") from error
    tokenizer.pre_tokenizer = pre_tokenizer  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens(
        [
            AddedToken(text, special=True, normalized=False)
            for text in _tokens_of(vocabulary, _CONTROL)
        ]
    )
    tokenizer.add_tokens(
        [AddedToken(text, normalized=False) for text in _tokens_of(vocabulary, _USER_DEFINED)]
    )
    return tokenizer


def _tokens_of(vocabulary: GgufVocabulary, wanted: int) -> list[str]:
    typed = zip(vocabulary.tokens, vocabulary.token_types, strict=True)
    return [token for token, kind in typed if kind == wanted]


def _pairs(merges: Sequence[str]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not space:
            raise CheckpointError("a merge of the GGUF vocabulary has no second part")
        pairs.append((left, right))
    return pairs


def _pre_tokenizer(name: str) -> "PreTokenizer":
    from tokenizers import pre_tokenizers  # noqa: PLC0415

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    match name:
        case "smollm":
            digits = pre_tokenizers.Digits(individual_digits=True)
            return pre_tokenizers.Sequence([digits, byte_level])
        case "gpt-2":
            return byte_level
        case _:
            supported = ", ".join(_SUPPORTED_PRE)
            raise UnsupportedModelError(
                f"GGUF pre-tokenizer {name!r} is not supported; supported: {supported}"
            )
