"""The names that tensors of GGUF files have in Hugging Face checkpoints.

Source:
    `gguf.tensor_mapping`, and the lists of tensors in `gguf.constants`.
"""

_GLOBAL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LLAMA = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA3 = _LLAMA | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_PHI3 = _LLAMA | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_LAYER_NAMES = {"gemma3": _GEMMA3, "phi3": _PHI3}


def hugging_face_name(name: str, architecture: str) -> str:
    """Return the name in Hugging Face; one that no model asks for stays as it is.

    Args:
        name: In the file: `blk.0.attn_q.weight`.
        architecture: `general.architecture` of the file.
    """
    stem, _, suffix = name.rpartition(".")
    if stem in _GLOBAL_NAMES:
        return f"{_GLOBAL_NAMES[stem]}.{suffix}"
    prefix, _, rest = stem.partition(".")
    layer, _, part = rest.partition(".")
    layer_names = _LAYER_NAMES.get(architecture, _LLAMA)
    if prefix == "blk" and part in layer_names:
        return f"model.layers.{layer}.{layer_names[part]}.{suffix}"
    return name
