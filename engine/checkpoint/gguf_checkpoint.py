"""A checkpoint in one GGUF file, as llama.cpp writes it."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from engine.checkpoint.checkpoint import Checkpoint
from engine.checkpoint.errors import CheckpointError, UnsupportedModelError
from engine.checkpoint.gguf_header import GgufArray, GgufTensor, read_array, read_header
from engine.checkpoint.gguf_tokenizer import GgufVocabulary, build_tokenizer
from engine.checkpoint.model_config import config_from_gguf
from engine.checkpoint.tensors import TensorEntry

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_GLOBAL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GgufCheckpoint(Checkpoint):
    """Reads metadata at opening; vocabulary and tensors when asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._header = read_header(path)
        metadata = self._header.metadata
        names = {tensor.name for tensor in self._header.tensors}
        if "rope_freqs.weight" in names:
            raise UnsupportedModelError(
                "GGUF files with their own RoPE frequencies are unsupported"
            )
        self.config = config_from_gguf(
            metadata, vocab_size=self._vocab_size(), tied="output.weight" not in names
        )
        self.bos_token_id = self._token_id("bos")
        end_ids = (self._token_id("eos"), self._token_id("eot"))
        self.eos_token_ids = tuple(
            dict.fromkeys(token_id for token_id in end_ids if token_id is not None)
        )
        self.add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", False))
        template = metadata.get("tokenizer.chat_template")
        self.chat_template = template if isinstance(template, str) else None

    @cached_property
    def bos_token(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return the text of `bos_token_id`."""
        return self._text(self.bos_token_id)

    @cached_property
    def eos_token(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return the text of the first end token."""
        return self._text(self.eos_token_ids[0] if self.eos_token_ids else None)

    @cached_property
    def tensors(self) -> dict[str, TensorEntry]:
        """Return the tensor index by Hugging Face name."""
        entries = (self._entry_of(tensor) for tensor in self._header.tensors)
        return {entry.name: entry for entry in entries}

    def tokenizer(self) -> "Tokenizer":
        """Build the tokenizer from the vocabulary in the file."""
        return build_tokenizer(self._vocabulary)

    @cached_property
    def _vocabulary(self) -> GgufVocabulary:
        metadata = self._header.metadata
        return GgufVocabulary(
            model=str(metadata.get("tokenizer.ggml.model")),
            pre=str(metadata.get("tokenizer.ggml.pre", "gpt-2")),
            tokens=[str(token) for token in self._array("tokenizer.ggml.tokens")],
            token_types=[int(kind) for kind in self._array("tokenizer.ggml.token_type")],
            merges=[str(merge) for merge in self._array("tokenizer.ggml.merges")],
        )

    def _array(self, key: str) -> list[int] | list[float] | list[str]:
        value = self._header.metadata.get(key)
        if not isinstance(value, GgufArray):
            raise CheckpointError(f"{self.path.name} has no {key}")
        return read_array(self.path, value)

    def _vocab_size(self) -> int:
        for tensor in self._header.tensors:
            if tensor.name == "token_embd.weight":
                return tensor.shape[0]
        raise CheckpointError(f"{self.path.name} has no token embedding")

    def _token_id(self, name: str) -> int | None:
        value = self._header.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if not isinstance(value, int) or not 0 <= value < self.config.vocab_size:
            return None
        return value

    def _text(self, token_id: int | None) -> str | None:
        tokens = self._vocabulary.tokens
        return None if token_id is None or token_id >= len(tokens) else tokens[token_id]

    def _entry_of(self, tensor: GgufTensor) -> TensorEntry:
        kind, num_bytes = _stored_as(tensor)
        if tensor.offset + num_bytes > self._header.file_bytes:
            raise CheckpointError(f"{self.path.name} ends inside tensor {tensor.name}")
        name = _hugging_face_name(tensor.name)
        heads = self._interleaved_heads(name)
        if heads and tensor.shape[0] % (2 * heads):
            raise CheckpointError(f"tensor {tensor.name} does not divide into {heads} heads")
        return TensorEntry(
            name=name,
            shape=tensor.shape,
            kind=kind,
            file=self.path,
            offset=tensor.offset,
            num_bytes=num_bytes,
            interleaved_heads=heads,
        )

    def _interleaved_heads(self, name: str) -> int | None:
        if name.endswith(".q_proj.weight"):
            return self.config.num_heads
        return self.config.num_kv_heads if name.endswith(".k_proj.weight") else None


def _stored_as(tensor: GgufTensor) -> tuple[str, int]:
    """Return the kind's name and the size in bytes."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType  # noqa: PLC0415

    try:
        kind = GGMLQuantizationType(tensor.type_id)
    except ValueError as error:
        raise UnsupportedModelError(
            f"tensor {tensor.name} is of the unknown type {tensor.type_id}"
        ) from error
    block_values, block_bytes = GGML_QUANT_SIZES[kind]
    blocks, rest = divmod(tensor.shape[-1], block_values)
    if 0 in tensor.shape:
        raise CheckpointError(f"tensor {tensor.name} is empty")
    if rest:
        raise CheckpointError(f"rows of tensor {tensor.name} are no whole blocks of {kind.name}")
    rows = 1
    for dimension in tensor.shape[:-1]:
        rows *= dimension
    return kind.name, rows * blocks * block_bytes


def _hugging_face_name(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem in _GLOBAL_NAMES:
        return f"{_GLOBAL_NAMES[stem]}.{suffix}"
    prefix, _, rest = stem.partition(".")
    layer, _, part = rest.partition(".")
    if prefix == "blk" and part in _LAYER_NAMES:
        return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{suffix}"
    return name  # the model asks for what it needs by name; the rest is not read
