"""Configurations of every family, as transformers writes them, in all spellings."""

import math
from typing import Any

import msgspec
import pytest
import transformers

from engine.checkpoint.errors import CheckpointError, UnsupportedModelError
from engine.checkpoint.model_config import (
    SUPPORTED_ARCHITECTURES,
    ModelConfig,
    RopeScaling,
    config_from_hugging_face,
)

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 1024,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6}


def read(family: str, **fields: Any) -> ModelConfig:
    """Read what transformers' configuration of a family saves."""
    config = getattr(transformers, f"{family}Config")(**(SIZES | fields))
    return config_from_hugging_face(config.to_dict())


def saved(family: str, **fields: Any) -> dict[str, Any]:
    return getattr(transformers, f"{family}Config")(**SIZES).to_dict() | fields


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3", "Gemma3Text", "Phi3"])
def test_every_family_gives_the_sizes_that_transformers_was_given(family: str):
    original = getattr(transformers, f"{family}Config")(**SIZES, dtype="bfloat16", rope_theta=5e5)
    config = config_from_hugging_face(original.to_dict())

    assert config.architecture in SUPPORTED_ARCHITECTURES
    assert config.architecture.startswith(family.removesuffix("Text"))
    assert config.hidden_size == 64
    assert config.intermediate_size == 96
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (4, 4, 2)
    assert config.head_dim == (getattr(original, "head_dim", None) or 16)
    assert (config.vocab_size, config.max_position_embeddings) == (300, 1024)
    assert config.rms_norm_eps == original.rms_norm_eps
    assert config.rope_theta == 5e5
    assert config.tie_word_embeddings == original.tie_word_embeddings
    assert config.dtype == "bfloat16"


def test_llama_may_have_biases_and_heads_of_another_size():
    config = read("Llama", attention_bias=True, mlp_bias=True, head_dim=32)

    assert config.qkv_bias
    assert config.output_bias
    assert config.mlp_bias
    assert config.head_dim == 32
    assert config.rope_scaling == RopeScaling()
    assert (config.query_scale, config.embedding_scale, config.norm_offset) == (None, 1.0, 0.0)


@pytest.mark.parametrize(("window", "expected"), [(None, None), (100, 100), (1024, None)])
def test_mistral_has_a_window_in_all_layers_or_none(window: int | None, expected: int | None):
    config = read("Mistral", sliding_window=window)

    assert config.sliding_window == expected
    assert config.num_sliding_layers == (0 if expected is None else 4)


def test_a_mistral_file_that_says_nothing_of_windows_has_that_of_the_first_release():
    fields = saved("Mistral", max_position_embeddings=32768)
    del fields["sliding_window"]

    assert config_from_hugging_face(fields).sliding_window == 4096


def test_qwen2_has_biases_on_its_inputs_only():
    config = read("Qwen2")

    assert config.qkv_bias
    assert not config.output_bias
    assert not config.qk_norm
    assert config.sliding_window is None


@pytest.mark.parametrize("family", ["Qwen2", "Qwen3"])
def test_qwen_windows_begin_at_a_layer_and_only_when_switched_on(family: str):
    on = read(family, use_sliding_window=True, sliding_window=64, max_window_layers=3)
    everywhere = read(family, use_sliding_window=True, sliding_window=64, max_window_layers=0)
    off = read(family, sliding_window=64, max_window_layers=1)
    fields = saved(family, use_sliding_window=True, sliding_window=64, max_window_layers=3)
    del fields["layer_types"]

    assert on.sliding_layers == (False, False, False, True)
    assert config_from_hugging_face(fields) == on
    assert (everywhere.sliding_window, everywhere.sliding_layers) == (64, ())
    assert everywhere.num_sliding_layers == 4
    assert off.sliding_window is None


def test_layer_types_win_over_the_count_of_layers():
    types = ["sliding_attention", "full_attention"] * 2
    config = read("Qwen3", use_sliding_window=True, sliding_window=64, layer_types=types)

    assert config.sliding_layers == (True, False, True, False)


def test_qwen3_normalizes_queries_and_keys_and_may_have_biases():
    assert read("Qwen3").qk_norm
    assert read("Qwen3").head_dim == 128
    assert not read("Qwen3").qkv_bias
    assert read("Qwen3", attention_bias=True).output_bias


def test_gemma3_has_all_its_peculiarities():
    config = read("Gemma3Text", num_hidden_layers=7, query_pre_attn_scalar=64, sliding_window=128)

    assert config.sliding_layers == (True, True, True, True, True, False, True)
    assert config.sliding_window == 128
    assert (config.rope_theta, config.local_rope_theta) == (1e6, 1e4)
    assert config.query_scale == pytest.approx(0.125)
    assert config.embedding_scale == pytest.approx(math.sqrt(64))
    assert config.norm_offset == 1.0
    assert config.activation == "gelu_tanh"
    assert config.qk_norm
    assert config.tie_word_embeddings
    assert config.logits_softcap is None


def test_gemma3_s_soft_cap_of_logits_and_its_older_pattern_are_read():
    fields = saved("Gemma3Text", final_logit_softcapping=30.0)
    del fields["layer_types"]
    config = config_from_hugging_face(fields | {"sliding_window_pattern": 2})

    assert config.sliding_layers == (True, False, True, False)
    assert config.logits_softcap == 30.0


def test_the_text_model_of_a_multimodal_gemma3_is_read_with_what_its_file_leaves_out():
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = config_from_hugging_face(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "text_config": text,
            "torch_dtype": "bfloat16",
        }
    )

    assert config == msgspec.structs.replace(
        config_from_hugging_face(
            transformers.Gemma3Config(text_config=text).to_dict()["text_config"]
        ),
        dtype="bfloat16",
    )
    assert (config.architecture, config.vocab_size) == ("Gemma3ForCausalLM", 262_208)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 4, 256)
    assert config.rope_scaling.factor == 8.0
    assert config.num_sliding_layers == 29


def test_phi3_rotates_a_part_and_stretches_by_tables():
    config = read(
        "Phi3",
        partial_rotary_factor=0.75,
        original_max_position_embeddings=256,
        rope_scaling=LONGROPE,
        sliding_window=200,
    )

    assert config.rotary_dim == 12
    assert config.sliding_window == 200
    assert config.rope_scaling == RopeScaling(
        kind="longrope",
        factor=4.0,
        original_max_position_embeddings=256,
        short_factors=(1.0,) * 6,
        long_factors=(2.0,) * 6,
    )
    assert read("Phi3").rotary_dim is None


@pytest.mark.parametrize("name", ["su", "yarn"])
def test_early_names_of_longrope_are_understood(name: str):
    fields = saved("Phi3", rope_scaling=LONGROPE | {"type": name}, partial_rotary_factor=0.75)

    assert config_from_hugging_face(fields).rope_scaling.kind == "longrope"


@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"rope_type": "default"}, RopeScaling()),
        ({"type": "linear", "factor": 2}, RopeScaling(kind="linear", factor=2.0)),
        (
            LLAMA3,
            RopeScaling(
                kind="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=256,
            ),
        ),
        (
            {"rope_type": "yarn", "factor": 4.0},
            RopeScaling(kind="yarn", factor=4.0, original_max_position_embeddings=1024),
        ),
        (
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 256,
                "beta_fast": 16,
                "beta_slow": 2,
                "mscale": 0.7,
                "mscale_all_dim": 0.8,
                "truncate": False,
                "attention_factor": 1.25,
            },
            RopeScaling(
                kind="yarn",
                factor=4.0,
                original_max_position_embeddings=256,
                beta_fast=16.0,
                beta_slow=2.0,
                mscale=0.7,
                mscale_all_dim=0.8,
                truncate=False,
                attention_factor=1.25,
            ),
        ),
    ],
)
def test_rope_scalings_are_read_in_both_spellings(
    spelling: str, settings: dict[str, Any], expected: RopeScaling
):
    fields = saved("Llama", rope_theta=7e5)
    del fields["rope_scaling"]
    if spelling == "rope_parameters":
        settings = settings | {"rope_theta": 7e5}
        del fields["rope_theta"]

    config = config_from_hugging_face(fields | {spelling: settings})

    assert config.rope_scaling == expected
    assert config.rope_theta == 7e5


def test_rope_parameters_of_each_layer_type_are_told_apart():
    fields = saved("Gemma3Text")
    for name in ("rope_theta", "rope_local_base_freq", "rope_scaling"):
        del fields[name]
    parameters = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
    }

    config = config_from_hugging_face(fields | {"rope_parameters": parameters})

    assert config.rope_scaling == RopeScaling(kind="linear", factor=8.0)
    assert (config.rope_theta, config.local_rope_theta) == (2e6, 3e4)
    parameters["sliding_attention"]["rope_type"] = "yarn"
    with pytest.raises(UnsupportedModelError, match="yarn in layers with a sliding window"):
        config_from_hugging_face(fields | {"rope_parameters": parameters})


@pytest.mark.parametrize(
    ("family", "fields", "reason"),
    [
        ("Llama", {"architectures": ["Qwen2MoeForCausalLM"]}, "supported: Llama.*Phi3ForCausalLM"),
        ("Llama", {"model_type": "mamba"}, "'mamba' is not supported; supported: Llama"),
        ("Llama", {"hidden_act": "relu"}, "supported: silu, gelu_pytorch_tanh"),
        ("Gemma3Text", {"hidden_activation": "gelu"}, "supported: silu, gelu_pytorch_tanh"),
        ("Llama", {"rope_scaling": {"type": "dynamic", "factor": 2}}, "yarn, longrope"),
        ("Llama", {"partial_rotary_factor": 0.5}, "supported in: Phi3"),
        ("Llama", {"quantization_config": {"bits": 4}}, "supported: float32"),
        ("Gemma3Text", {"use_bidirectional_attention": True}, "supported: causal"),
        ("Mistral", {"layer_types": ["sliding_attention"] + ["full_attention"] * 3}, "all or none"),
        ("Qwen3", {"use_sliding_window": True, "sliding_window": 9, "layer_types": ["x"] * 4},
         "layer type 'x'.*supported: full_attention"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_with_what_can(family: str, fields: dict, reason: str):
    with pytest.raises(UnsupportedModelError, match=reason):
        config_from_hugging_face(saved(family, **fields))


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("Gemma3Text", {"query_pre_attn_scalar": -1}),
        ("Gemma3Text", {"query_pre_attn_scalar": 0}),
        ("Gemma3Text", {"sliding_window": None}),
        ("Gemma3Text", {"sliding_window": -4}),
        ("Gemma3Text", {"layer_types": ["sliding_attention"]}),
        ("Gemma3Text", {"final_logit_softcapping": 0}),
        ("Qwen3", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": "all",
                   "layer_types": None}),
        ("Phi3", {"partial_rotary_factor": 0.7}),
        ("Phi3", {"partial_rotary_factor": 2}),
        ("Phi3", {"rope_scaling": LONGROPE}),
        ("Phi3", {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8}}),
        ("Phi3", {"rope_scaling": {"type": "longrope", "short_factor": [0] * 8,
                                   "long_factor": [1.0] * 8}}),
        ("Llama", {"rope_scaling": {"type": "yarn"}}),
        ("Llama", {"rope_scaling": {"type": "yarn", "factor": 2.0}, "rope_theta": 1.0}),
        ("Llama", {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}),
        ("Llama", {"rope_scaling": [1, 2]}),
        *((family, {"num_hidden_layers": 10**12, "layer_types": None})
          for family in ("Llama", "Mistral", "Qwen2", "Gemma3Text")),  # no list of so many
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(family: str, fields: dict):
    with pytest.raises(CheckpointError):
        config_from_hugging_face(saved(family, **fields))
