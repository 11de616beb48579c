"""Tiny random models of every family, made by transformers: the oracles, and their files."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

CONTEXT = 320
"""Two and a half chunks of attention."""


@dataclass(frozen=True)
class TinyModel:
    """A variant of a family."""

    name: str
    family: str
    fields: dict[str, Any] = field(default_factory=dict)
    max_model_len: int = CONTEXT

    def config(self) -> transformers.PretrainedConfig:
        """Make transformers' configuration."""
        common = {
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "vocab_size": 150,
            "max_position_embeddings": CONTEXT,
            "tie_word_embeddings": False,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": None,
            "attn_implementation": "eager",
        }
        cls = getattr(transformers, self.family + "Config")
        return cls(**(common | self.fields))

    def oracle(self):
        """Make transformers' model with large random weights, norms and biases too."""
        torch.manual_seed(7)
        model = getattr(transformers, self.family.replace("Text", "") + "ForCausalLM")(
            self.config()
        )
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                noise = torch.randn_like(parameter) * 0.2
                parameter.copy_(parameter + noise if "norm" in name else noise)
        return model.eval()

    def save(self, folder: Path):
        """Write the model as a Hugging Face directory; returns the oracle."""
        model = self.oracle()
        model.save_pretrained(folder)
        return model


def _rope(kind: str, **values: object) -> dict[str, Any]:
    return {"rope_scaling": {"rope_type": kind, **values}}


LONGROPE = {
    "hidden_size": 64,  # transformers wants one factor for each pair of 0.75 * 64 / 4 values
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 128,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
        "long_factor": [1.5, 2.0, 3.0, 5.0, 8.0, 9.0],
    },
}

MODELS = [
    TinyModel("llama_gqa", "Llama"),
    TinyModel(
        "llama_mha_tied_biases",
        "Llama",
        {
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    TinyModel("llama_one_kv_head_large_heads", "Llama", {"num_key_value_heads": 1, "head_dim": 32}),
    TinyModel("llama_linear", "Llama", _rope("linear", factor=4.0)),
    TinyModel(
        "llama_llama3",
        "Llama",
        _rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
    TinyModel(
        "llama_yarn",
        "Llama",
        _rope("yarn", factor=4.0, original_max_position_embeddings=80),
    ),
    TinyModel("mistral_full", "Mistral", {"sliding_window": None}),
    TinyModel("mistral_window_1", "Mistral", {"sliding_window": 1}),
    TinyModel("mistral_window_37", "Mistral", {"sliding_window": 37}),
    TinyModel("mistral_window_150", "Mistral", {"sliding_window": 150}),
    TinyModel("qwen2", "Qwen2"),
    TinyModel(
        "qwen2_mixed_windows_yarn",
        "Qwen2",
        {
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 50,
            "max_window_layers": 1,
            "tie_word_embeddings": True,
            **_rope("yarn", factor=2.0, original_max_position_embeddings=160),
        },
    ),
    TinyModel("qwen3", "Qwen3"),
    TinyModel(
        "qwen3_windows_mha_tied_biases",
        "Qwen3",
        {
            "num_key_value_heads": 4,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 21,
            "max_window_layers": 0,
        },
    ),
    TinyModel(
        "gemma3",
        "Gemma3Text",
        {
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
            "sliding_window": 24,
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 24,
            "final_logit_softcapping": 8.0,
            "attn_logit_softcapping": 1.0,  # a field without meaning in transformers
            "num_key_value_heads": 1,
        },
    ),
    TinyModel(
        "gemma3_linear_window_over_a_chunk",
        "Gemma3Text",
        {
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "sliding_window": 140,
            "query_pre_attn_scalar": 16,
            **_rope("linear", factor=8.0),
        },
    ),
    TinyModel("phi3_window", "Phi3", {"sliding_window": 33, "head_dim": 12}),
    TinyModel("phi3_partial_rotary", "Phi3", {"partial_rotary_factor": 0.5}),
    TinyModel("phi3_longrope_long", "Phi3", LONGROPE),
    TinyModel("phi3_longrope_short", "Phi3", LONGROPE, max_model_len=128),
]
