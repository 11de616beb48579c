"""The shape of a model: what the engine must know of it, whichever files it came from."""

import math
from typing import Literal

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
_MAX_LAYERS = 4096


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
        raise unsupported_architecture(config.architecture)
    _check_sizes(config)
    _check_constants(config)
    _check_windows(config)
    _check_rope(config)
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        raise CheckpointError(
            f"heads do not fit together: {config.num_heads} heads, "
            f"{config.num_kv_heads} key-value heads of {config.head_dim}"
        )
    return config


def check_layers(count: int) -> int:
    """Return the number of layers, if one can make a list of so many.

    Raises:
        CheckpointError: it is out of range.
    """
    if not 0 < count <= _MAX_LAYERS:
        raise CheckpointError(f"the number of layers is out of range: {count}")
    return count


def unsupported_architecture(name: object) -> UnsupportedModelError:
    """Return the refusal of a model class, which names those that can run."""
    supported = ", ".join(SUPPORTED_ARCHITECTURES)
    return UnsupportedModelError(f"architecture {name!r} is not supported; supported: {supported}")


def unsupported_rope(kind: object) -> UnsupportedModelError:
    """Return the refusal of a RoPE scaling, which names those that can run."""
    supported = ", ".join(SUPPORTED_ROPE_KINDS)
    return UnsupportedModelError(f"RoPE scaling {kind!r} is not supported; supported: {supported}")


def _check_sizes(config: ModelConfig) -> None:
    sizes = {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_heads": config.num_heads,
        "num_kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "the original context of the RoPE scaling": (
            config.rope_scaling.original_max_position_embeddings
        ),
    }
    for name, size in sizes.items():
        if not 0 < size <= _MAX_DIMENSION:
            raise CheckpointError(f"{name} is out of range: {size}")


def _check_constants(config: ModelConfig) -> None:
    scaling = config.rope_scaling
    constants = {
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "the local rope_theta": config.local_rope_theta,
        "the scale of queries": config.query_scale,
        "the scale of embeddings": config.embedding_scale,
        "the soft cap of logits": config.logits_softcap,
        "the factor of the RoPE scaling": scaling.factor,
        "the attention factor of the RoPE scaling": scaling.attention_factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
    }
    for name, constant in constants.items():
        if constant is not None and not 0.0 < constant < math.inf:
            raise CheckpointError(f"{name} is out of range: {constant}")


def _check_windows(config: ModelConfig) -> None:
    if config.sliding_window is not None and config.sliding_window <= 0:
        raise CheckpointError(f"sliding_window is out of range: {config.sliding_window}")
    if config.sliding_layers and len(config.sliding_layers) != config.num_layers:
        raise CheckpointError(
            f"there are {config.num_layers} layers, but the types of {len(config.sliding_layers)}"
        )


def _check_rope(config: ModelConfig) -> None:
    rotary_dim = config.head_dim if config.rotary_dim is None else config.rotary_dim
    if not 0 < rotary_dim <= config.head_dim or rotary_dim % 2:
        raise CheckpointError(f"rotary_dim is out of range: {rotary_dim}")
    scaling = config.rope_scaling
    if scaling.kind == "llama3" and scaling.high_freq_factor <= scaling.low_freq_factor:
        raise CheckpointError("high_freq_factor is not above low_freq_factor")
    if scaling.kind in ("yarn", "longrope") and (  # divide by the logarithms of both
        config.rope_theta <= 1.0 or scaling.original_max_position_embeddings <= 1
    ):
        raise CheckpointError("the RoPE scaling needs a base and an original context above 1")
    expected = {"longrope": (1, 1), "factors": (0, 1)}.get(scaling.kind, (0, 0))
    for factors, times in zip((scaling.short_factors, scaling.long_factors), expected, strict=True):
        if len(factors) != times * rotary_dim // 2:
            raise CheckpointError(
                f"RoPE scaling {scaling.kind!r} has {len(factors)} factors for a rotation of "
                f"{rotary_dim} values"
            )
        if not all(0.0 < factor < math.inf for factor in factors):
            raise CheckpointError("a factor of the RoPE scaling is out of range")
