"""Byte-level BPE of GGUF files: `tokenizer.ggml.model` is `gpt2`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.checkpoint.errors import CheckpointError, UnsupportedModelError
from engine.checkpoint.gguf_tokenizer import UNUSED, GgufVocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"


def _cased(ending: str) -> str:
    """Match words that break where a capital follows a small letter."""
    return f"{_BEFORE}{_UPPER}*{_LOWER}+{ending}|{_BEFORE}{_UPPER}+{_LOWER}*{ending}"


def _words(digits: str) -> str:
    return rf"{_CONTRACTION}|{_BEFORE}\p{{L}}+|{digits}|{_PUNCTUATION}[\r\n]*|{_SPACES}"


_PATTERNS = {
    "llama-bpe": _words(r"\p{N}{1,3}"),
    "qwen2": _words(r"\p{N}"),
    "tekken": rf"{_cased('')}|\p{{N}}|{_PUNCTUATION}[\r\n/]*|{_SPACES}",
    "gpt-4o": rf"{_cased(f'{_CONTRACTION}?')}|\p{{N}}{{1,3}}|{_PUNCTUATION}[\r\n/]*|{_SPACES}",
}
"""How a text is cut before its pieces are merged; `gpt-2` is built into the library."""
_ALIASES = {
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "dbrx": "llama-bpe",
    "smaug-bpe": "llama-bpe",
    "deepseek-r1-qwen": "qwen2",
    "stablelm2": "qwen2",
    "phi-2": "gpt-2",
    "starcoder": "smollm",
    "refact": "smollm",
    "command-r": "smollm",
}
"""Other names for the same cuts."""
_WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "tekken")
"""A piece that is a token is never merged from its parts."""
_NORMALIZED = ("qwen2", "deepseek-r1-qwen")
"""Accents are composed first."""
_BEGINS_WITH_BOS = ("llama-bpe", "llama3", "llama-v3", "tekken")


def begins_with_bos(pre: str) -> bool:
    """Return whether prompts begin with the first token if a file does not say so."""
    return pre in _BEGINS_WITH_BOS


def byte_level_bpe(vocabulary: GgufVocabulary) -> "Tokenizer":
    """Build the tokenizer, without its added tokens.

    Raises:
        UnsupportedModelError: another pre-tokenizer.
        CheckpointError: the vocabulary contradicts itself.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers  # noqa: PLC0415

    pre_tokenizer = _pre_tokenizer(vocabulary.pre)
    typed = zip(vocabulary.tokens, vocabulary.token_types, strict=True)
    ids = {token: token_id for token_id, (token, kind) in enumerate(typed) if kind != UNUSED}
    merges = _pairs(vocabulary.merges)
    try:
        model = models.BPE(vocab=ids, merges=merges, ignore_merges=vocabulary.pre in _WHOLE_WORDS)
    except Exception as error:  # the binding raises plain Exception
        raise CheckpointError(f"the GGUF vocabulary is inconsistent: {error}") from error
    tokenizer = Tokenizer(model)
    if vocabulary.pre in _NORMALIZED:
        tokenizer.normalizer = normalizers.NFC()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.pre_tokenizer = pre_tokenizer  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    return tokenizer


def _pairs(merges: Sequence[str]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not space:
            raise CheckpointError("a merge of the GGUF vocabulary has no second part")
        pairs.append((left, right))
    return pairs


def _pre_tokenizer(name: str) -> "PreTokenizer":
    from tokenizers import Regex, pre_tokenizers  # noqa: PLC0415

    kind = _ALIASES.get(name, name)
    if kind == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind == "smollm":
        first = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([first, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if kind not in _PATTERNS:
        supported = ", ".join(sorted({"gpt-2", "smollm", *_PATTERNS, *_ALIASES}))
        raise UnsupportedModelError(
            f"GGUF pre-tokenizer {name!r} is not supported; supported: {supported}"
        )
    cut = pre_tokenizers.Split(Regex(_PATTERNS[kind]), behavior="isolated")
    return pre_tokenizers.Sequence(
        [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
