"""Rotary cosines and sines against transformers, with every scaling of frequencies."""

import math

import msgspec
import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from engine.checkpoint.model_config import ModelConfig, RopeScaling, config_from_hugging_face
from engine.layers.rotary import Rotary

POSITIONS = [0, 1, 17, 500, 4000]
CPU = torch.device("cpu")
FIELDS = {
    "hidden_size": 256,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
SCALINGS = [
    None,
    {"rope_type": "linear", "factor": 4.0},
    LLAMA3,
    YARN,
    {"rope_type": "yarn", "factor": 1.0},
    YARN | {"beta_fast": 20.0, "beta_slow": 2.0},
    YARN | {"truncate": False},
    YARN | {"attention_factor": 0.8},
    YARN | {"mscale": 1.0, "mscale_all_dim": 0.5},
    YARN | {"beta_fast": 1.0, "beta_slow": 1.0, "truncate": False},
]
LONGROPE = FIELDS | {
    "hidden_size": 64,
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 1024,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0 + at / 8 for at in range(12)],
        "long_factor": [1.5 + at * at for at in range(12)],
    },
}


def rotary(family: str, fields: dict, max_positions: int = 4096) -> tuple[torch.Tensor, ...]:
    config = config_from_hugging_face(fields | {"architectures": [f"{family}ForCausalLM"]})
    return at_positions(Rotary(config, max_positions, CPU), POSITIONS)


def at_positions(table: Rotary, positions: list[int]) -> tuple[torch.Tensor, ...]:
    """Return cosines and sines, the latter with the signs of transformers."""
    cos, sin = table.at(torch.tensor(positions))
    half = sin.shape[-1] // 2
    return cos, torch.cat((-sin[:, :half], sin[:, half:]), dim=-1)


def assert_equal(actual: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> None:
    for ours, theirs in zip(actual, wanted, strict=True):
        torch.testing.assert_close(ours, theirs[0], rtol=0, atol=5e-4)


def copied(fields: dict) -> dict:
    """transformers writes into what it is given."""
    return msgspec.json.decode(msgspec.json.encode(fields))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_cosines_and_sines_equal_those_of_transformers(scaling):
    fields = FIELDS | {"rope_scaling": scaling}

    oracle = LlamaRotaryEmbedding(LlamaConfig(**copied(fields)))

    wanted = oracle(torch.zeros(1, 1, 128), torch.tensor([POSITIONS]))
    assert_equal(rotary("Llama", fields), wanted)


@pytest.mark.parametrize(("max_positions", "longest"), [(1024, 1023), (1025, 4000), (4096, 4000)])
def test_longrope_has_the_factors_of_the_engines_longest_context(max_positions, longest):
    positions = [*POSITIONS[:4], longest]
    config = config_from_hugging_face(LONGROPE | {"architectures": ["Phi3ForCausalLM"]})

    actual = at_positions(Rotary(config, max_positions, CPU), positions)

    oracle = Phi3RotaryEmbedding(Phi3Config(pad_token_id=None, **copied(LONGROPE)))
    assert_equal(actual, oracle(torch.zeros(1, 1, 24), torch.tensor([positions])))
    assert actual[0].shape == (5, 24)


def test_a_table_of_factors_divides_each_frequency():
    factors = tuple(1.0 + at for at in range(4))
    scaling = RopeScaling(kind="factors", long_factors=factors, attention_factor=2.0)

    cos, sin = at_positions(Rotary(a_config(rope_scaling=scaling), 100, CPU), [3])

    angles = [3 / (10000 ** (at / 4) * factors[at]) for at in range(4)] * 2
    torch.testing.assert_close(cos[0], torch.tensor([2 * math.cos(angle) for angle in angles]))
    torch.testing.assert_close(sin[0], torch.tensor([2 * math.sin(angle) for angle in angles]))


def test_layers_with_a_base_of_their_own_are_not_scaled():
    scaling = RopeScaling(kind="linear", factor=8.0)
    scaled = a_config(rope_scaling=scaling, local_rope_theta=100.0)
    plain = a_config(rope_theta=100.0)

    assert_equal(
        at_positions(Rotary(scaled, 100, CPU, is_local=True), POSITIONS),
        tuple(part[None] for part in at_positions(Rotary(plain, 100, CPU), POSITIONS)),
    )


def test_a_position_has_the_same_bits_in_any_company():
    table = Rotary(a_config(head_dim=6), 100, CPU)
    positions = torch.arange(0, 60000, 7)
    every = torch.cat(table.at(positions), dim=-1)

    for count in (1, 2, 3, 5, 16, 63):
        some = torch.arange(count) * 97 % len(positions)
        assert torch.equal(torch.cat(table.at(positions[some]), dim=-1), every[some])


def a_config(**changes: object) -> ModelConfig:
    fields: dict = {
        "architecture": "LlamaForCausalLM",
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_layers": 1,
        "num_heads": 1,
        "num_kv_heads": 1,
        "head_dim": 8,
        "vocab_size": 8,
        "max_position_embeddings": 100,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }
    return ModelConfig(**(fields | changes))
