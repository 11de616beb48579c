"""Reads the shape of a model from the fields of a `config.json`."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from engine.checkpoint.errors import CheckpointError, UnsupportedModelError
from engine.checkpoint.model_shape import (
    SUPPORTED_ARCHITECTURES,
    SUPPORTED_ROPE_KINDS,
    ModelConfig,
    RopeScaling,
    check_config,
    check_layers,
    unsupported_architecture,
)
from engine.checkpoint.rope_config import (
    local_rope_theta,
    partial_rotary_factor,
    rope_scaling,
    rope_theta,
)

__all__ = [
    "SUPPORTED_ARCHITECTURES",
    "SUPPORTED_ROPE_KINDS",
    "ModelConfig",
    "RopeScaling",
    "check_config",
    "config_from_hugging_face",
]

MULTIMODAL_GEMMA3 = "Gemma3ForConditionalGeneration"
"""A text model with an image tower beside it, which is left out."""
_BY_MODEL_TYPE = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3": MULTIMODAL_GEMMA3,
    "phi3": "Phi3ForCausalLM",
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "MistralForCausalLM": {"num_key_value_heads": 8, "sliding_window": 4096},
    "Qwen2ForCausalLM": {"sliding_window": 4096, "max_window_layers": 28},
    "Qwen3ForCausalLM": {"head_dim": 128, "sliding_window": 4096, "max_window_layers": 28},
    "Phi3ForCausalLM": {"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
    "Gemma3ForCausalLM": {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_theta": 1_000_000.0,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    },
}
"""What a field means that is left out, where that is not the same for all families: Google's own
files leave most of them out."""
_GEMMA3_PATTERN = 6
_ACTIVATIONS: dict[object, Literal["silu", "gelu_tanh"]] = {
    "silu": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def config_from_hugging_face(fields: Mapping[str, Any]) -> ModelConfig:
    """Build the configuration from the fields of a `config.json`.

    Raises:
        UnsupportedModelError: another architecture, or a variant that cannot run.
        CheckpointError: a field is missing or of the wrong type.
    """
    try:
        architecture, fields = _text_model(fields)
        fields = _DEFAULTS.get(architecture, {}) | dict(fields)
        _refuse_variants(architecture, fields)
        config = _with_family(_common(architecture, fields), fields)
    except KeyError as error:
        raise CheckpointError(f"config.json lacks {error}") from error
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise CheckpointError(f"config.json: {error}") from error
    return check_config(config)


def named_architecture(fields: Mapping[str, Any]) -> str:
    """Return the model class that a `config.json` names.

    Raises:
        UnsupportedModelError: it cannot run.
        CheckpointError: it names none.
    """
    names = fields.get("architectures")
    if isinstance(names, list) and names:
        name = str(names[0])
    elif fields.get("model_type"):
        name = _BY_MODEL_TYPE.get(str(fields["model_type"]), str(fields["model_type"]))
    else:
        raise CheckpointError("config.json names no architecture")
    if name not in (*SUPPORTED_ARCHITECTURES, MULTIMODAL_GEMMA3):
        raise unsupported_architecture(name)
    return name


def _text_model(fields: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the class and the fields of the model that makes text."""
    architecture = named_architecture(fields)
    if architecture != MULTIMODAL_GEMMA3:
        return architecture, fields
    text = fields.get("text_config")
    if not isinstance(text, Mapping):
        raise CheckpointError(f"config.json of {MULTIMODAL_GEMMA3} has no text_config")
    saved = fields.get("dtype") or fields.get("torch_dtype")
    return "Gemma3ForCausalLM", {"dtype": saved, **{k: v for k, v in text.items() if v is not None}}


def _refuse_variants(architecture: str, fields: Mapping[str, Any]) -> None:
    if fields.get("quantization_config"):
        raise UnsupportedModelError(
            "quantized Hugging Face checkpoints are not supported; supported: float32, float16, "
            "bfloat16, and quantized GGUF files"
        )
    if fields.get("use_bidirectional_attention"):
        raise UnsupportedModelError(
            "attention to later tokens is not supported; supported: causal attention"
        )
    if architecture != "Phi3ForCausalLM" and partial_rotary_factor(fields) != 1.0:
        raise UnsupportedModelError(
            f"rotary over a part of the head is not supported in {architecture}; supported in: "
            "Phi3ForCausalLM"
        )


def _common(architecture: str, fields: Mapping[str, Any]) -> ModelConfig:
    """Read what all families have."""
    heads, hidden = int(fields["num_attention_heads"]), int(fields["hidden_size"])
    saved = fields.get("dtype") or fields.get("torch_dtype")
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden,
        intermediate_size=int(fields["intermediate_size"]),
        num_layers=check_layers(int(fields["num_hidden_layers"])),
        num_heads=heads,
        num_kv_heads=int(fields.get("num_key_value_heads") or heads),
        head_dim=int(fields.get("head_dim") or hidden // heads),
        vocab_size=int(fields["vocab_size"]),
        max_position_embeddings=int(fields.get("max_position_embeddings", 2048)),
        rms_norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
        rope_theta=rope_theta(fields),
        tie_word_embeddings=bool(fields.get("tie_word_embeddings", False)),
        rope_scaling=rope_scaling(fields),
        dtype=None if saved is None else str(saved).removeprefix("torch."),
        activation=_activation(fields),
    )


def _activation(fields: Mapping[str, Any]) -> Literal["silu", "gelu_tanh"]:
    name = fields.get("hidden_activation") or fields.get("hidden_act") or "silu"
    if name not in _ACTIVATIONS:
        supported = ", ".join(str(known) for known in _ACTIVATIONS)
        raise UnsupportedModelError(f"activation {name!r} is not supported; supported: {supported}")
    return _ACTIVATIONS[name]


def _with_family(config: ModelConfig, fields: Mapping[str, Any]) -> ModelConfig:
    """Add what only some families have."""
    replace = msgspec.structs.replace
    has_bias = bool(fields.get("attention_bias"))
    match config.architecture:
        case "LlamaForCausalLM":
            has_mlp_bias = bool(fields.get("mlp_bias"))
            return replace(config, qkv_bias=has_bias, output_bias=has_bias, mlp_bias=has_mlp_bias)
        case "Qwen2ForCausalLM":
            config = replace(config, qkv_bias=True)
        case "Qwen3ForCausalLM":
            config = replace(config, qk_norm=True, qkv_bias=has_bias, output_bias=has_bias)
        case "Phi3ForCausalLM":
            rotary_dim = int(config.head_dim * partial_rotary_factor(fields))
            config = replace(
                config, rotary_dim=None if rotary_dim == config.head_dim else rotary_dim
            )
        case "Gemma3ForCausalLM":
            config = replace(_gemma3(config, fields), qkv_bias=has_bias, output_bias=has_bias)
        case _:
            pass  # Mistral
    return _with_window(config, fields)


def _gemma3(config: ModelConfig, fields: Mapping[str, Any]) -> ModelConfig:
    cap = fields.get("final_logit_softcapping")
    return msgspec.structs.replace(
        config,
        local_rope_theta=local_rope_theta(fields),
        qk_norm=True,
        query_scale=1.0 / math.sqrt(fields["query_pre_attn_scalar"]),
        embedding_scale=math.sqrt(config.hidden_size),
        norm_offset=1.0,
        logits_softcap=None if cap is None else float(cap),
    )


def _with_window(config: ModelConfig, fields: Mapping[str, Any]) -> ModelConfig:
    layers = _sliding_layers(config, fields)
    if not any(layers):
        # the base of the local layers has no meaning without any
        return msgspec.structs.replace(config, local_rope_theta=None)
    if fields.get("sliding_window") is None:
        raise CheckpointError("config.json names layers with a sliding window, but no size of it")
    window = int(fields["sliding_window"])
    if window >= config.max_position_embeddings and config.local_rope_theta is None:
        return config  # it never hides anything
    return msgspec.structs.replace(
        config, sliding_window=window, sliding_layers=() if all(layers) else layers
    )


def _sliding_layers(config: ModelConfig, fields: Mapping[str, Any]) -> tuple[bool, ...]:
    """Return which layers have the window, as each family writes it."""
    match config.architecture:
        case "Qwen2ForCausalLM" | "Qwen3ForCausalLM":
            if not fields.get("use_sliding_window") or fields.get("sliding_window") is None:
                return ()
            first = int(fields["max_window_layers"])
            default = tuple(layer >= first for layer in range(config.num_layers))
        case "Gemma3ForCausalLM":
            pattern = int(
                fields.get("sliding_window_pattern")
                or fields.get("_sliding_window_pattern")
                or _GEMMA3_PATTERN
            )
            default = tuple((layer + 1) % pattern != 0 for layer in range(config.num_layers))
        case _:
            default = (fields.get("sliding_window") is not None,) * config.num_layers
            if len({*_typed_layers(fields), *default}) > 1:
                raise UnsupportedModelError(
                    f"sliding windows in some of the layers are not supported in "
                    f"{config.architecture}; supported: in all or none"
                )
            return default
    typed = _typed_layers(fields)
    if typed and len(typed) != config.num_layers:
        raise CheckpointError(f"layer_types names {len(typed)} of {config.num_layers} layers")
    return typed or default


def _typed_layers(fields: Mapping[str, Any]) -> tuple[bool, ...]:
    types = fields.get("layer_types") or ()
    for kind in types:
        if kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedModelError(
                f"layer type {kind!r} is not supported; supported: full_attention, "
                "sliding_attention"
            )
    return tuple(kind == "sliding_attention" for kind in types)
