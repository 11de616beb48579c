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


_GEMMA3 = {
    "model_type": "gemma3_text",
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 32_768,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": 512,
    "vocab_size": 262_144,
}
_PHI3 = {
    "model_type": "phi3",
    "attention_bias": False,
    "hidden_act": "silu",
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": 32_064,
}
_PHI3_LONG = _PHI3 | {
    "max_position_embeddings": 131_072,
    "rope_scaling": _LONGROPE,
    "sliding_window": 262_144,
}
_MISTRAL = {
    "model_type": "mistral",
    "hidden_act": "silu",
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
_QWEN = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151_936,
}
_QWEN2 = _QWEN | {
    "model_type": "qwen2",
    "max_position_embeddings": 32_768,
    "max_window_layers": 24,
    "sliding_window": 32_768,
    "use_mrope": False,
}


def _fields(name: str, sizes: tuple[int, int, int, int, int], **more: Any) -> dict[str, Any]:
    hidden, inner, layers, heads, kv_heads = sizes
    return {
        "architectures": [f"{name}ForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "torch_dtype": "bfloat16",
    } | more


PUBLISHED: dict[str, dict[str, Any]] = {
    "Llama-3.2-1B": _fields(
        "Llama", (2048, 8192, 16, 32, 8), model_type="llama", attention_bias=False, head_dim=64,
        hidden_act="silu", max_position_embeddings=131_072, mlp_bias=False, pretraining_tp=1,
        rms_norm_eps=1e-5, rope_scaling=_LLAMA3, rope_theta=500000.0, tie_word_embeddings=True,
        vocab_size=128_256,
    ),
    "Mistral-7B-v0.1": _fields(
        "Mistral", (4096, 14336, 32, 32, 8), rope_theta=10000.0, sliding_window=4096,
        vocab_size=32_000, **_MISTRAL,
    ),
    "Mistral-7B-v0.3": _fields(
        "Mistral", (4096, 14336, 32, 32, 8), rope_theta=1000000.0, sliding_window=None,
        vocab_size=32_768, **_MISTRAL,
    ),
    "Qwen2.5-0.5B": _fields("Qwen2", (896, 4864, 24, 14, 2), **_QWEN2),
    "Qwen2.5 with YaRN": _fields(
        "Qwen2", (896, 4864, 24, 14, 2), **_QWEN2,
        rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768},
    ),
    "Qwen3-0.6B": _fields(
        "Qwen3", (1024, 3072, 28, 16, 8), model_type="qwen3", attention_bias=False, head_dim=128,
        max_position_embeddings=40_960, max_window_layers=28, rope_scaling=None,
        sliding_window=None, **_QWEN,
    ),
    "gemma-3-270m": _fields(
        "Gemma3", (640, 2048, 18, 4, 1), _sliding_window_pattern=6,
        layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 3,
        use_bidirectional_attention=False, **_GEMMA3,
    ),
    "gemma-3-1b-it": _fields(
        "Gemma3", (1152, 6912, 26, 4, 1), cache_implementation="hybrid",
        sliding_window_pattern=6, **_GEMMA3,
    ),
    "Phi-3-mini-4k": _fields(
        "Phi3", (3072, 8192, 32, 32, 32), max_position_embeddings=4096, sliding_window=2047,
        **_PHI3,
    ),
    "Phi-3-mini-128k": _fields("Phi3", (3072, 8192, 32, 32, 32), **_PHI3_LONG),
    "Phi-4-mini": _fields(
        "Phi3", (3072, 8192, 32, 24, 8), full_attn_mod=1, interpolate_factor=1,
        lm_head_bias=False, mlp_bias=False, partial_rotary_factor=0.75,
        **(_PHI3_LONG | {"tie_word_embeddings": True, "vocab_size": 200_064}),
    ),
}  # fmt: skip
"""By the model's name."""
