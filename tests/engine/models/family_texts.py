"""Texts for the tiny models, computed in one piece and in a mix of chunks and single tokens."""

from itertools import cycle, repeat

import torch

from tests.engine.models.harness import Steps, Text, run_texts
from tests.engine.models.tiny_families import TinyModel

ODD_COUNTS = (1, 29, 5, 64, 1, 1, 101, 2, 17)


def token_ids(tiny: TinyModel) -> list[list[int]]:
    lengths = (tiny.max_model_len - 3, tiny.max_model_len // 3, 19)
    return [[(7 * n + 11 * at * at + 5 * at) % 150 for at in range(n)] for n in lengths]


def in_one_piece(model: Steps, tiny: TinyModel) -> list[torch.Tensor]:
    """Compute every text alone."""
    found: list[torch.Tensor] = []
    for tokens in token_ids(tiny):
        text = Text(model, tokens, first_block=100)
        run_texts(model, [text], repeat(len(tokens)))
        found += text.logits
    return found


def in_a_mix(model: Steps, tiny: TinyModel) -> list[torch.Tensor]:
    """Compute chunks and single tokens of all texts in common steps."""
    texts: list[Text] = []
    for tokens in token_ids(tiny):
        texts.append(Text(model, tokens, texts[-1].end_block if texts else 1))
    run_texts(model, texts, cycle(ODD_COUNTS))
    return [torch.cat(text.logits) for text in texts]
