"""The shape of a model, read from `config.json` or from GGUF metadata."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from engine.checkpoint.errors import CheckpointError, UnsupportedModelError

SUPPORTED_ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Gemma3ForCausalLM",
    "Phi3ForCausalLM",
)
SUPPORTED_ROPE_KINDS = ("default", "linear", "llama3", "yarn", "longrope")
_MAX_DIMENSION = 1 << 24


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """How rotary frequencies are stretched to reach longer contexts."""

    kind: Literal["default", "linear", "llama3", "yarn", "longrope", "factors"] = "default"
    """`factors`: every frequency is divided by its own entry of `long_factors`, as GGUF files of
    Llama 3.1 have it."""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    """Scales cosines and sines; None: as the paper of the kind says."""
    mscale: float | None = None
    mscale_all_dim: float | None = None
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and constants of a decoder-only transformer, named as in Hugging Face."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    rope_scaling: RopeScaling = RopeScaling()
    dtype: str | None = None
    """The dtype the weights were saved in, where the checkpoint says so."""
    rotary_dim: int | None = None
    """Values of a head that rotate; None: all of `head_dim`."""
    local_rope_theta: float | None = None
    """Base of the sliding-window layers, unscaled; None: theirs is that of the others."""
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMS norm of each query and key head before rotation."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    sliding_window: int | None = None
    """Tokens that a sliding-window layer sees, its own included."""
    sliding_layers: tuple[bool, ...] = ()
    """Which layers have the window; empty: all, if there is a `sliding_window`."""
    query_scale: float | None = None
    """Scores are multiplied with it; None: `head_dim ** -0.5`."""
    embedding_scale: float = 1.0
    """Embeddings are multiplied with it, rounded to the weights' dtype."""
    norm_offset: float = 0.0
    """Added to the weights of RMS norms: 1 for Gemma in Hugging Face layout (in GGUF it is in
    the weights already)."""
    attention_softcap: float | None = None
    logits_softcap: float | None = None

    def is_sliding(self, layer: int) -> bool:
        """Return whether a layer sees only the last `sliding_window` tokens."""
        if self.sliding_window is None:
            return False
        return self.sliding_layers[layer] if self.sliding_layers else True

    @property
    def num_sliding_layers(self) -> int:
        """Return how many layers have a sliding window."""
        return sum(self.is_sliding(layer) for layer in range(self.num_layers))


def check_config(config: ModelConfig) -> ModelConfig:
    """Return `config` if its sizes fit together.

    Raises:
        UnsupportedModelError: the architecture is not one of `SUPPORTED_ARCHITECTURES`.
        CheckpointError: a value is out of range, or a size does not divide another.
    """
    if config.architecture not in SUPPORTED_ARCHITECTURES:
        supported = ", ".join(SUPPORTED_ARCHITECTURES)
        raise UnsupportedModelError(
            f"architecture {config.architecture!r} is not supported; supported: {supported}"
        )
    for name in (
        "hidden_size",
        "intermediate_size",
        "num_layers",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "vocab_size",
        "max_position_embeddings",
    ):
        value = msgspec.structs.asdict(config)[name]
        if not 0 < value <= _MAX_DIMENSION:
            raise CheckpointError(f"{name} is out of range: {value}")
    for name, constant in (
        ("rms_norm_eps", config.rms_norm_eps),
        ("rope_theta", config.rope_theta),
        ("the factor of the RoPE scaling", config.rope_scaling.factor),
    ):
        if not 0.0 < constant < math.inf:
            raise CheckpointError(f"{name} is out of range: {constant}")
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        raise CheckpointError(
            f"heads do not fit together: {config.num_heads} heads, "
            f"{config.num_kv_heads} key-value heads of {config.head_dim}"
        )
    return config


def config_from_hugging_face(fields: Mapping[str, Any]) -> ModelConfig:
    """Build the configuration from the fields of a `config.json`.

    Raises:
        UnsupportedModelError: another architecture, activation, bias or RoPE scaling.
        CheckpointError: a field is missing or of the wrong type.
    """
    architecture = _architecture_of(fields)
    _refuse_variants(fields)
    try:
        heads = int(fields["num_attention_heads"])
        hidden = int(fields["hidden_size"])
        config = ModelConfig(
            architecture=architecture,
            hidden_size=hidden,
            intermediate_size=int(fields["intermediate_size"]),
            num_layers=int(fields["num_hidden_layers"]),
            num_heads=heads,
            num_kv_heads=int(fields.get("num_key_value_heads") or heads),
            head_dim=int(fields.get("head_dim") or hidden // heads),
            vocab_size=int(fields["vocab_size"]),
            max_position_embeddings=int(fields.get("max_position_embeddings", 2048)),
            rms_norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
            rope_theta=_rope_theta(fields),
            tie_word_embeddings=bool(fields.get("tie_word_embeddings", False)),
            rope_scaling=_rope_scaling(fields),
            dtype=fields.get("dtype") or fields.get("torch_dtype"),
        )
    except KeyError as error:
        raise CheckpointError(f"config.json lacks {error}") from error
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise CheckpointError(f"config.json: {error}") from error
    return check_config(config)


def config_from_gguf(metadata: Mapping[str, Any], *, vocab_size: int, tied: bool) -> ModelConfig:
    """Build the configuration from GGUF metadata.

    Raises:
        UnsupportedModelError: another architecture, partial rotary or RoPE scaling.
        CheckpointError: a key is missing or of the wrong type.
    """
    name = metadata.get("general.architecture")
    if name != "llama":
        raise UnsupportedModelError(
            f"GGUF architecture {name!r} is not supported; supported: llama"
        )
    if metadata.get("llama.expert_count"):
        raise UnsupportedModelError("mixture-of-experts GGUF files are not supported")
    try:
        heads = int(metadata["llama.attention.head_count"])
        hidden = int(metadata["llama.embedding_length"])
        head_dim = int(metadata.get("llama.attention.key_length", hidden // heads))
        rotary_dim = int(metadata.get("llama.rope.dimension_count", head_dim))
        config = ModelConfig(
            architecture="LlamaForCausalLM",
            hidden_size=hidden,
            intermediate_size=int(metadata["llama.feed_forward_length"]),
            num_layers=int(metadata["llama.block_count"]),
            num_heads=heads,
            num_kv_heads=int(metadata.get("llama.attention.head_count_kv", heads)),
            head_dim=head_dim,
            vocab_size=vocab_size,
            max_position_embeddings=int(metadata["llama.context_length"]),
            rms_norm_eps=float(metadata["llama.attention.layer_norm_rms_epsilon"]),
            rope_theta=float(metadata.get("llama.rope.freq_base", 10000.0)),
            tie_word_embeddings=tied,
            rope_scaling=_gguf_rope_scaling(metadata),
        )
    except KeyError as error:
        raise CheckpointError(f"GGUF metadata lacks {error}") from error
    except (TypeError, ValueError, ArithmeticError) as error:
        raise CheckpointError(f"GGUF metadata: {error}") from error
    if rotary_dim != head_dim:
        raise UnsupportedModelError("rotary over a part of the head is not supported")
    return check_config(config)


def _architecture_of(fields: Mapping[str, Any]) -> str:
    names = fields.get("architectures")
    if not isinstance(names, list) or not names:
        raise CheckpointError("config.json names no architecture")
    architecture = str(names[0])
    if architecture not in SUPPORTED_ARCHITECTURES:
        supported = ", ".join(SUPPORTED_ARCHITECTURES)
        raise UnsupportedModelError(
            f"architecture {architecture!r} is not supported; supported: {supported}"
        )
    return architecture


def _refuse_variants(fields: Mapping[str, Any]) -> None:
    if fields.get("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(
            f"activation {fields['hidden_act']!r} is not supported; supported: silu"
        )
    for bias in ("attention_bias", "mlp_bias"):
        if fields.get(bias):
            raise UnsupportedModelError(f"{bias} is not supported")
    if fields.get("quantization_config"):
        raise UnsupportedModelError("quantized Hugging Face checkpoints are not supported")


def _rope_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the RoPE settings; newer configurations call them `rope_parameters`."""
    return fields.get("rope_parameters") or fields.get("rope_scaling") or {}


def _rope_theta(fields: Mapping[str, Any]) -> float:
    return float(_rope_fields(fields).get("rope_theta") or fields.get("rope_theta") or 10000.0)


def _rope_scaling(fields: Mapping[str, Any]) -> RopeScaling:
    scaling = _rope_fields(fields)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    match kind:
        case "default":
            return RopeScaling()
        case "linear":
            return RopeScaling(kind="linear", factor=float(scaling["factor"]))
        case "llama3":
            return RopeScaling(
                kind="llama3",
                factor=float(scaling["factor"]),
                low_freq_factor=float(scaling["low_freq_factor"]),
                high_freq_factor=float(scaling["high_freq_factor"]),
                original_max_position_embeddings=int(scaling["original_max_position_embeddings"]),
            )
        case _:
            raise _unsupported_rope(kind)


def _gguf_rope_scaling(metadata: Mapping[str, Any]) -> RopeScaling:
    kind = metadata.get("llama.rope.scaling.type", "none")
    match kind:
        case "none":
            return RopeScaling()
        case "linear":
            return RopeScaling(kind="linear", factor=float(metadata["llama.rope.scaling.factor"]))
        case _:
            raise _unsupported_rope(kind)


def _unsupported_rope(kind: object) -> UnsupportedModelError:
    supported = ", ".join(SUPPORTED_ROPE_KINDS)
    return UnsupportedModelError(f"RoPE scaling {kind!r} is not supported; supported: {supported}")
