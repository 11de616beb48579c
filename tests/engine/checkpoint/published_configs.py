"""Fields of the `config.json` of published models, as far as they say how a model computes.

The tables of LongRoPE are of the published length, their numbers are made up.
"""

from typing import Any

_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}
_LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0 + 0.02 * at for at in range(48)],
    "long_factor": [1.0 + 1.3 * at for at in range(48)],
}


def _fields(
    name: str,
    model_type: str,
    sizes: tuple[int, int, int, int, int],
    context: int,
    vocab_size: int,
    **more: Any,
) -> dict[str, Any]:
    hidden, inner, layers, heads, kv_heads = sizes
    return {
        "architectures": [f"{name}ForCausalLM"],
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": context,
        "vocab_size": vocab_size,
        "torch_dtype": "bfloat16",
    } | more


_GEMMA3 = {
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": 512,
}
_PHI3 = {
    "attention_bias": False,
    "hidden_act": "silu",
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_MISTRAL = {"hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
_QWEN = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": True}

PUBLISHED: dict[str, dict[str, Any]] = {
    "Llama-3.2-1B": _fields(
        "Llama",
        "llama",
        (2048, 8192, 16, 32, 8),
        131_072,
        128_256,
        attention_bias=False,
        head_dim=64,
        hidden_act="silu",
        mlp_bias=False,
        pretraining_tp=1,
        rms_norm_eps=1e-5,
        rope_scaling=_LLAMA3,
        rope_theta=500000.0,
        tie_word_embeddings=True,
    ),
    "Mistral-7B-v0.1": _fields(
        "Mistral",
        "mistral",
        (4096, 14336, 32, 32, 8),
        32_768,
        32_000,
        rope_theta=10000.0,
        sliding_window=4096,
        **_MISTRAL,
    ),
    "Mistral-7B-v0.3": _fields(
        "Mistral",
        "mistral",
        (4096, 14336, 32, 32, 8),
        32_768,
        32_768,
        rope_theta=1000000.0,
        sliding_window=None,
        **_MISTRAL,
    ),
    "Qwen2.5-0.5B": _fields(
        "Qwen2",
        "qwen2",
        (896, 4864, 24, 14, 2),
        32_768,
        151_936,
        max_window_layers=24,
        rope_theta=1000000.0,
        sliding_window=32_768,
        use_mrope=False,
        use_sliding_window=False,
        **_QWEN,
    ),
    "Qwen2.5 with YaRN": _fields(
        "Qwen2",
        "qwen2",
        (896, 4864, 24, 14, 2),
        32_768,
        151_936,
        max_window_layers=24,
        rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768},
        rope_theta=1000000.0,
        sliding_window=131_072,
        use_sliding_window=False,
        **_QWEN,
    ),
    "Qwen3-0.6B": _fields(
        "Qwen3",
        "qwen3",
        (1024, 3072, 28, 16, 8),
        40_960,
        151_936,
        attention_bias=False,
        head_dim=128,
        max_window_layers=28,
        rope_scaling=None,
        rope_theta=1000000,
        sliding_window=None,
        use_sliding_window=False,
        **_QWEN,
    ),
    "gemma-3-270m": _fields(
        "Gemma3",
        "gemma3_text",
        (640, 2048, 18, 4, 1),
        32_768,
        262_144,
        _sliding_window_pattern=6,
        layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 3,
        use_bidirectional_attention=False,
        **_GEMMA3,
    ),
    "gemma-3-1b-it": _fields(
        "Gemma3",
        "gemma3_text",
        (1152, 6912, 26, 4, 1),
        32_768,
        262_144,
        cache_implementation="hybrid",
        sliding_window_pattern=6,
        **_GEMMA3,
    ),
    "Phi-3-mini-4k": _fields(
        "Phi3",
        "phi3",
        (3072, 8192, 32, 32, 32),
        4096,
        32_064,
        rope_scaling=None,
        sliding_window=2047,
        **_PHI3,
    ),
    "Phi-3-mini-128k": _fields(
        "Phi3",
        "phi3",
        (3072, 8192, 32, 32, 32),
        131_072,
        32_064,
        rope_scaling=_LONGROPE,
        sliding_window=262_144,
        **_PHI3,
    ),
    "Phi-4-mini": _fields(
        "Phi3",
        "phi3",
        (3072, 8192, 32, 24, 8),
        131_072,
        200_064,
        full_attn_mod=1,
        interpolate_factor=1,
        lm_head_bias=False,
        mlp_bias=False,
        partial_rotary_factor=0.75,
        rope_scaling=_LONGROPE,
        sliding_window=262_144,
        **(_PHI3 | {"tie_word_embeddings": True}),
    ),
}
"""By the model's name."""
