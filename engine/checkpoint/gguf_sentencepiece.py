"""SentencePiece BPE of GGUF files: `tokenizer.ggml.model` is `llama`.

SentencePiece merges the two neighbours whose union has the highest score; the library of tokenizers
wants the list of merges in their order instead, so it is derived from the scores.

Source:
    Kudo and Richardson 2018, SentencePiece, https://arxiv.org/abs/1808.06226
"""

from typing import TYPE_CHECKING

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.gguf_tokenizer import NORMAL, GgufVocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.decoders import Decoder
    from tokenizers.normalizers import Normalizer

_SPACE = "\u2581"


def sentencepiece_bpe(vocabulary: GgufVocabulary) -> "Tokenizer":
    """Build the tokenizer, without its added tokens.

    Raises:
        CheckpointError: the vocabulary contradicts itself.
    """
    from tokenizers import Tokenizer, models  # noqa: PLC0415

    if len(vocabulary.tokens) != len(vocabulary.scores):
        raise CheckpointError("the GGUF vocabulary has not one score for each token")
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    try:
        model = models.BPE(
            vocab=ids,
            merges=_merges(vocabulary),
            unk_token=_unknown(vocabulary),
            fuse_unk=True,
            byte_fallback=True,
        )
    except Exception as error:  # the binding raises plain Exception
        raise CheckpointError(f"the GGUF vocabulary is inconsistent: {error}") from error
    tokenizer = Tokenizer(model)
    adds_space = vocabulary.adds_space
    tokenizer.normalizer = _normalizer(adds_space=adds_space)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = _decoder(adds_space=adds_space)  # pyright: ignore[reportAttributeAccessIssue]
    return tokenizer


def _merges(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    """Return every way to make a token of two others, the best token first."""
    entries = zip(vocabulary.tokens, vocabulary.scores, vocabulary.token_types, strict=True)
    scores = {token: score for token, score, kind in entries if kind == NORMAL}
    best_first = sorted(scores, key=scores.__getitem__, reverse=True)
    return [
        (left, right)
        for token in best_first
        for cut in range(1, len(token))
        if (left := token[:cut]) in scores and (right := token[cut:]) in scores
    ]


def _unknown(vocabulary: GgufVocabulary) -> str | None:
    unknown_id = vocabulary.unknown_id
    if unknown_id is None or unknown_id >= len(vocabulary.tokens):
        return None
    return vocabulary.tokens[unknown_id]


def _normalizer(*, adds_space: bool) -> "Normalizer":
    from tokenizers import normalizers  # noqa: PLC0415

    replace = normalizers.Replace(" ", _SPACE)
    if not adds_space:
        return replace
    return normalizers.Sequence([normalizers.Prepend(_SPACE), replace])


def _decoder(*, adds_space: bool) -> "Decoder":
    from tokenizers import decoders  # noqa: PLC0415

    steps: list[Decoder] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if adds_space:
        steps.append(decoders.Strip(content=" ", left=1))
    return decoders.Sequence(steps)
