"""Published models: tensors, windows and rotary positions are what transformers makes of them."""

import copy
import json
import sys
from pathlib import Path

import pytest
import torch
import transformers

from engine.checkpoint.model_config import ModelConfig, config_from_hugging_face
from engine.layers.rotary import Rotary
from engine.models.registry import family_of
from tests.engine.checkpoint.published_configs import PUBLISHED

CPU = torch.device("cpu")


@pytest.fixture(params=PUBLISHED)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def config(name: str) -> ModelConfig:
    return config_from_hugging_face(PUBLISHED[name])


@pytest.fixture
def original(name: str, tmp_path: Path) -> transformers.PretrainedConfig:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name]))
    return transformers.AutoConfig.from_pretrained(tmp_path)


def test_every_tensor_is_asked_for_in_the_shape_that_transformers_gives_it(config, original):
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(original)
    shapes = {key: tuple(value.shape) for key, value in model.named_parameters()}
    asked = {source for p in family_of(config).parameters(config) for source in p.sources}

    assert asked == set(shapes)
    for parameter in family_of(config).parameters(config):
        rows = sum(shapes[source][0] for source in parameter.sources)
        assert parameter.shape == (rows, *shapes[parameter.sources[0]][1:])


def test_the_same_layers_have_the_same_window(config, original):
    window = getattr(original, "sliding_window", None)
    everywhere = ["full_attention" if window is None else "sliding_attention"]
    kinds = getattr(original, "layer_types", None) or everywhere * original.num_hidden_layers
    is_short = window is not None and window < original.max_position_embeddings

    found = [config.is_sliding(layer) for layer in range(config.num_layers)]

    assert found == [kind == "sliding_attention" and is_short for kind in kinds]
    assert config.sliding_window == (window if any(found) else None)


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("context", [4096, 32_768])
def test_positions_rotate_by_the_same_angles(config, original, context, is_local):
    if is_local and config.local_rope_theta is not None:
        original = copy.deepcopy(original)
        original.rope_theta, original.rope_scaling = original.rope_local_base_freq, None
    last = min(context, config.max_position_embeddings) - 1
    positions = torch.tensor([0, 1, 17, 900, last])
    module = sys.modules[
        transformers.AutoModelForCausalLM._model_mapping[type(original)].__module__
    ]
    kind = next(kind for kind in dir(module) if kind.endswith("RotaryEmbedding"))
    wanted = getattr(module, kind)(original)(torch.zeros(1), positions[None])

    cos, sin = Rotary(config, context, CPU, is_local=is_local).at(positions)

    half = cos.shape[1] // 2
    # a rounding of the frequency turns a late position by some ten-thousandths
    torch.testing.assert_close(cos, wanted[0][0], rtol=0, atol=last * 2e-7)
    torch.testing.assert_close(sin[:, half:], wanted[1][0, :, half:], rtol=0, atol=last * 2e-7)
