"""Writes the tiny model as GGUF, the way llama.cpp's converter does."""

import math
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize

from engine.checkpoint.checkpoint import open_checkpoint
from engine.checkpoint.gguf_header import read_header
from tests.tiny_model import SPECIAL

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.weight"


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Interleave the halves of each head, as llama.cpp's rotary wants them."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def stored_values(path: Path, name: str) -> np.ndarray:
    """Decode one tensor with the `gguf` package, whose own reader takes long for vocabularies."""
    tensor = next(each for each in read_header(path).tensors if each.name == name)
    kind = GGMLQuantizationType(tensor.type_id)
    block_values, block_bytes = GGML_QUANT_SIZES[kind]
    num_bytes = math.prod(tensor.shape) // block_values * block_bytes
    stored = np.fromfile(path, np.uint8, num_bytes, offset=tensor.offset)
    return dequantize(stored.reshape(*tensor.shape[:-1], -1), kind)


def write_gguf(
    source: Path,
    target: Path,
    kind: GGMLQuantizationType,
    token_types: list[int] | None = None,
    **metadata: object,
) -> Path:
    """Convert a Hugging Face directory; `metadata` overrides keys (`None` leaves one out)."""
    checkpoint = open_checkpoint(source)
    config = checkpoint.config
    vocab = checkpoint.tokenizer().get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    values = {
        "llama.block_count": config.num_layers,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_heads,
        "llama.attention.head_count_kv": config.num_kv_heads,
        "llama.rope.dimension_count": config.head_dim,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    writer = GGUFWriter(str(target), str(metadata.pop("architecture", "llama")))
    for key, value in (values | metadata).items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", config.rms_norm_eps)
    writer.add_float32("llama.rope.freq_base", config.rope_theta)
    writer.add_string("tokenizer.chat_template", checkpoint.chat_template or "")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(token_types or [3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in merges_of(source)])
    for name in checkpoint.tensors:
        weight = checkpoint.read(name)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_heads if "q_proj" in name else config.num_kv_heads
            weight = permuted(weight, heads)
        stored = GGMLQuantizationType.F32 if weight.ndim == 1 else kind
        writer.add_tensor(gguf_name(name), quantize(weight, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def merges_of(source: Path) -> list[list[str]]:
    import json

    return json.loads((source / "tokenizer.json").read_text())["model"]["merges"]
