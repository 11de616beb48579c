"""The tiny models of every family, saved, and what transformers makes of their texts."""

from pathlib import Path

import pytest
import torch

from tests.engine.models.family_texts import token_ids
from tests.engine.models.tiny_families import MODELS, TinyModel


@pytest.fixture(scope="module", params=MODELS, ids=lambda tiny: tiny.name)
def tiny(request: pytest.FixtureRequest) -> TinyModel:
    return request.param


@pytest.fixture(scope="module")
def folder(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families") / tiny.name


@pytest.fixture(scope="module")
def expected(tiny: TinyModel, folder: Path) -> list[torch.Tensor]:
    """Logits of transformers; padding on the right: no token looks that way."""
    oracle = tiny.save(folder)
    rows = [text + [0] * (tiny.max_model_len - len(text)) for text in token_ids(tiny)]
    with torch.inference_mode():
        logits = oracle(torch.tensor(rows)).logits
    return [row[: len(text)] for row, text in zip(logits, token_ids(tiny), strict=True)]
