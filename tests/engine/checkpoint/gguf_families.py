"""Writes transformers' tiny models as GGUF, the way llama.cpp's converter does."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Kind
from gguf.quants import quantize

from tests.engine.checkpoint.gguf_files import permuted

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 320,
    "max_position_embeddings": 1024,
    "pad_token_id": None,
}


@dataclass(frozen=True)
class GgufFamily:
    """How a family is called on both sides."""

    name: str
    architecture: gguf.MODEL_ARCH
    fields: dict[str, Any] = field(default_factory=dict)

    def model(self) -> transformers.PreTrainedModel:
        """Make transformers' model with random weights, norms and biases too."""
        torch.manual_seed(0)
        cls = self.name.removesuffix("Text")
        config = getattr(transformers, f"{self.name}Config")(**(SIZES | self.fields))
        model = getattr(transformers, f"{cls}ForCausalLM")(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter))
        return model


FAMILIES = [
    GgufFamily("Llama", gguf.MODEL_ARCH.LLAMA, {"attention_bias": True}),
    GgufFamily("Qwen2", gguf.MODEL_ARCH.QWEN2, {"tie_word_embeddings": True}),
    GgufFamily("Qwen3", gguf.MODEL_ARCH.QWEN3, {"head_dim": 32}),
    GgufFamily(
        "Gemma3Text",
        gguf.MODEL_ARCH.GEMMA3,
        {"num_hidden_layers": 6, "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 96},
    ),
    GgufFamily("Phi3", gguf.MODEL_ARCH.PHI3, {"partial_rotary_factor": 0.5}),
]


def weights_of(model: transformers.PreTrainedModel) -> dict[str, np.ndarray]:
    """Return the weights by name, a tied head left out."""
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    return weights


def write_family(
    family: GgufFamily, path: Path, kind: Kind = Kind.F32, **metadata: Any
) -> dict[str, np.ndarray]:
    """Write a file; return the weights that it holds, under their names in Hugging Face."""
    model = family.model()
    config, weights = model.config, weights_of(model)
    writer = gguf.GGUFWriter(str(path), gguf.MODEL_ARCH_NAMES[family.architecture])
    extra = {name: metadata.pop(name) for name in list(metadata) if name.endswith(".weight")}
    _write_metadata(writer, config, metadata)
    _write_vocabulary(writer, config.vocab_size)
    names = gguf.get_tensor_name_map(family.architecture, config.num_hidden_layers)
    for name, weight in weights.items():
        stored_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored_name is not None, name
        stored = _as_stored(family, name, weight, config)
        stored_kind = Kind.F32 if stored.ndim == 1 else kind
        writer.add_tensor(stored_name, quantize(stored, stored_kind), raw_dtype=stored_kind)
    for name, values in extra.items():
        writer.add_tensor(name, np.asarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def _write_metadata(
    writer: gguf.GGUFWriter, config: transformers.PretrainedConfig, metadata: dict[str, Any]
) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(int(head_dim * getattr(config, "partial_rotary_factor", 1.0)))
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    for name, value in metadata.items():
        key = f"{writer.arch}.{name}"
        match value:
            case str():
                writer.add_string(key, value)
            case float():
                writer.add_float32(key, value)
            case list():
                writer.add_array(key, value)
            case _:
                writer.add_uint32(key, value)


def _write_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """Write a SentencePiece vocabulary; one token is the end of a turn."""
    letters = [*"abcdefgh\u2581", *("ab", "cd", "abcd", "\u2581a")]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    tokens += ["<end_of_turn>", *(f"t{number}" for number in range(size - len(tokens) - 1))]
    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3, "<end_of_turn>": 3}
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(rank) for rank in range(size)])
    writer.add_token_types([kinds.get(t, 6 if t.startswith("<0x") else 1) for t in tokens])


def _as_stored(
    family: GgufFamily, name: str, weight: np.ndarray, config: transformers.PretrainedConfig
) -> np.ndarray:
    if family.architecture == gguf.MODEL_ARCH.LLAMA and ".q_proj." in name:
        return permuted(weight, config.num_attention_heads)
    if family.architecture == gguf.MODEL_ARCH.LLAMA and ".k_proj." in name:
        return permuted(weight, config.num_key_value_heads)
    if family.architecture == gguf.MODEL_ARCH.GEMMA3 and name.endswith("norm.weight"):
        return weight + 1.0
    return weight
