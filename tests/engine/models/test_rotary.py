"""Rotary tables against transformers, with and without frequency scaling."""

import msgspec
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.checkpoint.model_config import config_from_hugging_face
from engine.layers.rotary import RotaryTable

FIELDS = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
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


@pytest.mark.parametrize("scaling", [None, {"rope_type": "linear", "factor": 4.0}, LLAMA3])
def test_tables_equal_those_of_transformers(scaling):
    fields = FIELDS | {"rope_scaling": scaling}
    positions = torch.tensor([0, 1, 17, 500, 4000])

    cos, sin = RotaryTable(config_from_hugging_face(fields), 4096, torch.device("cpu")).at(
        positions
    )

    fields.pop("architectures")
    oracle = LlamaRotaryEmbedding(LlamaConfig(**msgspec.json.decode(msgspec.json.encode(fields))))
    wanted_cos, wanted_sin = oracle(torch.zeros(1, 1, 32), positions[None])
    sign = torch.tensor([-1.0] * 16 + [1.0] * 16)
    torch.testing.assert_close(cos, wanted_cos[0], rtol=0, atol=2e-4)
    torch.testing.assert_close(sin * sign, wanted_sin[0], rtol=0, atol=2e-4)
