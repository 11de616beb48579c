"""Reads the shape of a model from GGUF metadata."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from engine.checkpoint.errors import CheckpointError, UnsupportedModelError
from engine.checkpoint.gguf_header import GgufArray
from engine.checkpoint.model_shape import (
    ModelConfig,
    RopeScaling,
    check_config,
    check_layers,
    unsupported_rope,
)

GGUF_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
}
"""`llama` files may hold a Mistral."""
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_GEMMA3_PATTERN = 6
_GEMMA3_27B_LAYERS = 62
"""That size alone scales its queries by the model's width per head; its files do not say so."""


class _Metadata:
    """The keys of one architecture, with what is missing named in full."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self._metadata = metadata
        self._architecture = architecture

    def get(self, name: str) -> Any:
        value = self._metadata.get(f"{self._architecture}.{name}")
        if isinstance(value, GgufArray):
            raise UnsupportedModelError(f"a {name} that differs by layer is not supported")
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        return int(self._required(name, default))

    def number(self, name: str, default: float | None = None) -> float:
        return float(self._required(name, default))

    def optional(self, name: str) -> float | None:
        """Return a number that zero switches off."""
        return float(self.get(name) or 0.0) or None

    def _required(self, name: str, default: float | None) -> Any:
        value = self.get(name)
        value = default if value is None else value
        if value is None:
            raise KeyError(f"{self._architecture}.{name}")
        return value


def config_from_gguf(
    metadata: Mapping[str, Any],
    *,
    vocab_size: int,
    names: Collection[str],
    factors: Mapping[str, tuple[float, ...]],
    dtype: str | None = None,
) -> ModelConfig:
    """Build the configuration from GGUF metadata.

    Args:
        metadata: Of the file's header.
        vocab_size: Rows of the embedding.
        names: Of the tensors in the file: some properties show only there.
        factors: Values of those of `ROPE_TENSORS` that the file has.
        dtype: Of the matrices, if they are all plain and alike.

    Raises:
        UnsupportedModelError: another architecture, or a variant that cannot run.
        CheckpointError: a key is missing or of the wrong type.
    """
    name = metadata.get("general.architecture")
    if name not in GGUF_ARCHITECTURES:
        supported = ", ".join(GGUF_ARCHITECTURES)
        raise UnsupportedModelError(
            f"GGUF architecture {name!r} is not supported; supported: {supported}"
        )
    if metadata.get("split.count") not in (None, 0, 1):
        raise UnsupportedModelError(
            "a model in several GGUF files is not supported: join them with "
            "`llama-gguf-split --merge`"
        )
    keys = _Metadata(metadata, str(name))
    try:
        if keys.get("expert_count"):
            raise UnsupportedModelError("mixture-of-experts GGUF files are not supported")
        config = msgspec.structs.replace(
            _common(keys, GGUF_ARCHITECTURES[str(name)], vocab_size),
            tie_word_embeddings="output.weight" not in names,
            rope_scaling=_rope_scaling(keys, factors),
            dtype=dtype,
            qkv_bias="blk.0.attn_q.bias" in names,
            output_bias="blk.0.attn_output.bias" in names,
            mlp_bias="blk.0.ffn_up.bias" in names,
            qk_norm="blk.0.attn_q_norm.weight" in names,
        )
        config = _with_family(config, keys)
    except KeyError as error:
        raise CheckpointError(f"GGUF metadata lacks {error}") from error
    except (TypeError, ValueError, ArithmeticError) as error:
        raise CheckpointError(f"GGUF metadata: {error}") from error
    return check_config(config)


def _common(keys: _Metadata, architecture: str, vocab_size: int) -> ModelConfig:
    heads = keys.integer("attention.head_count")
    hidden = keys.integer("embedding_length")
    head_dim = keys.integer("attention.key_length", hidden // heads)
    if keys.integer("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModelError("values of another size than keys are not supported")
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden,
        intermediate_size=keys.integer("feed_forward_length"),
        num_layers=check_layers(keys.integer("block_count")),
        num_heads=heads,
        num_kv_heads=keys.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_position_embeddings=keys.integer("context_length"),
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope_theta=keys.number("rope.freq_base", 10000.0),
        tie_word_embeddings=False,
        rotary_dim=_rotary_dim(keys, head_dim),
    )


def _rotary_dim(keys: _Metadata, head_dim: int) -> int | None:
    rotary_dim = keys.integer("rope.dimension_count", head_dim)
    return None if rotary_dim == head_dim else rotary_dim


def _with_family(config: ModelConfig, keys: _Metadata) -> ModelConfig:
    if config.architecture != "Phi3ForCausalLM" and config.rotary_dim is not None:
        raise UnsupportedModelError(
            f"rotary over a part of the head is not supported in {config.architecture}; supported "
            "in: Phi3ForCausalLM"
        )
    match config.architecture:
        case "Gemma3ForCausalLM":
            return _gemma3(config, keys)
        case "LlamaForCausalLM" | "Phi3ForCausalLM":
            return _windowed(config, keys)
        case _:
            return config


def _windowed(config: ModelConfig, keys: _Metadata) -> ModelConfig:
    """Give all layers the window, if there is one: 0 stands for none."""
    window = keys.integer("attention.sliding_window", 0)
    if not 0 < window < config.max_position_embeddings:
        return config
    is_mistral = config.architecture == "LlamaForCausalLM"
    return msgspec.structs.replace(
        config,
        architecture="MistralForCausalLM" if is_mistral else config.architecture,
        sliding_window=window,
    )


def _gemma3(config: ModelConfig, keys: _Metadata) -> ModelConfig:
    pattern = keys.integer("attention.sliding_window_pattern", _GEMMA3_PATTERN)
    width = config.head_dim
    if config.num_layers == _GEMMA3_27B_LAYERS:
        width = config.hidden_size // config.num_heads
    return msgspec.structs.replace(
        config,
        local_rope_theta=keys.number("rope.freq_base_swa", 10000.0),
        activation="gelu_tanh",
        sliding_window=keys.integer("attention.sliding_window"),
        sliding_layers=tuple((layer + 1) % pattern != 0 for layer in range(config.num_layers)),
        query_scale=1.0 / math.sqrt(width),
        embedding_scale=math.sqrt(config.hidden_size),
        logits_softcap=keys.optional("final_logit_softcapping"),
    )


def _rope_scaling(keys: _Metadata, factors: Mapping[str, tuple[float, ...]]) -> RopeScaling:
    own, long, short = (factors.get(name, ()) for name in ROPE_TENSORS)
    if long or short:
        return _longrope(keys, long, short)
    if own:
        return RopeScaling(kind="factors", long_factors=own)
    factor = keys.get("rope.scaling.factor")
    kind = keys.get("rope.scaling.type") or ("none" if factor is None else "linear")
    match kind:
        case "none":
            return RopeScaling()
        case "linear":
            return RopeScaling(kind="linear", factor=keys.number("rope.scaling.factor"))
        case "yarn":
            return _yarn(keys)
        case _:
            raise unsupported_rope(kind)


def _yarn(keys: _Metadata) -> RopeScaling:
    factor = keys.number("rope.scaling.factor")
    more = keys.number("rope.scaling.attn_factor", 1.0) * keys.number(
        "rope.scaling.yarn_attn_factor", 1.0
    )
    original = keys.integer("rope.scaling.original_context_length", 0)
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_position_embeddings=original or keys.integer("context_length"),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
        # llama.cpp multiplies it with the factor that the paper gives
        attention_factor=None if more == 1.0 else more * (1.0 + 0.1 * math.log(factor)),
    )


def _longrope(
    keys: _Metadata, long_factors: tuple[float, ...], short_factors: tuple[float, ...]
) -> RopeScaling:
    longest = keys.integer("context_length")
    original = keys.integer("rope.scaling.original_context_length", longest)
    return RopeScaling(
        kind="longrope",
        factor=longest / original,
        original_max_position_embeddings=original,
        attention_factor=keys.optional("rope.scaling.attn_factor"),
        short_factors=short_factors,
        long_factors=long_factors,
    )
