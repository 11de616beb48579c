"""A checkpoint in one GGUF file, as llama.cpp writes it."""

import struct
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from engine.checkpoint.checkpoint import Checkpoint
from engine.checkpoint.errors import CheckpointError, UnsupportedModelError
from engine.checkpoint.gguf_byte_bpe import begins_with_bos
from engine.checkpoint.gguf_config import ROPE_TENSORS, config_from_gguf
from engine.checkpoint.gguf_header import GgufArray, GgufTensor, read_array, read_header
from engine.checkpoint.gguf_kinds import KINDS
from engine.checkpoint.gguf_names import hugging_face_name
from engine.checkpoint.gguf_tokenizer import CONTROL, GgufVocabulary, build_tokenizer
from engine.checkpoint.tensors import TensorEntry

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_F32, _F16, _BF16 = 0, 1, 30  # numbers of `gguf_kinds.KINDS`
_PLAIN_DTYPES = {_F32: "float32", _F16: "float16", _BF16: "bfloat16"}
_MAX_FACTORS = 4096
_SENTENCEPIECE_UNKNOWN, _SENTENCEPIECE_BOS, _SENTENCEPIECE_EOS = 0, 1, 2
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")
"""Files name one end token, but chat models end a turn with another than a text."""


class GgufCheckpoint(Checkpoint):
    """Reads metadata at opening; vocabulary and tensors when asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._header = read_header(path)
        metadata = self._header.metadata
        self.config = config_from_gguf(
            metadata,
            vocab_size=self._vocab_size(),
            names={tensor.name for tensor in self._header.tensors},
            factors=self._rope_factors(),
            dtype=_common_dtype(self._header.tensors),
        )
        self._is_sentencepiece = metadata.get("tokenizer.ggml.model") == "llama"
        self.bos_token_id = self._token_id("bos", _SENTENCEPIECE_BOS)
        self.add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", self._default_add_bos()))
        template = metadata.get("tokenizer.chat_template")
        self.chat_template = template if isinstance(template, str) else None

    @cached_property
    def eos_token_ids(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return the end tokens: those that the file names, and the known ends of a turn."""
        named = (self._token_id("eos", _SENTENCEPIECE_EOS), *map(self._token_id, ("eot", "eom")))
        found = [token_id for token_id in named if token_id is not None]
        typed = zip(self._vocabulary.tokens, self._vocabulary.token_types, strict=True)
        found += [
            i for i, (text, kind) in enumerate(typed) if kind == CONTROL and text in _TURN_ENDS
        ]
        return tuple(dict.fromkeys(found))

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
        merges, scores = "tokenizer.ggml.merges", "tokenizer.ggml.scores"
        tokens = [str(token) for token in self._array("tokenizer.ggml.tokens")]
        if len(tokens) > self.config.vocab_size:
            raise CheckpointError(
                f"{self.path.name} has {len(tokens)} tokens, but embeddings of only "
                f"{self.config.vocab_size}"
            )
        return GgufVocabulary(
            model=str(metadata.get("tokenizer.ggml.model")),
            pre=self._pre,
            tokens=tokens,
            token_types=[int(kind) for kind in self._array("tokenizer.ggml.token_type")],
            merges=() if self._is_sentencepiece else [str(pair) for pair in self._array(merges)],
            scores=[float(each) for each in self._array(scores)] if self._is_sentencepiece else (),
            unknown_id=self._token_id("unknown", _SENTENCEPIECE_UNKNOWN),
            adds_space=bool(metadata.get("tokenizer.ggml.add_space_prefix", True)),
            control_swallows_space=self._is_sentencepiece and self._architecture == "phi3",
        )

    @property
    def _pre(self) -> str:
        return str(self._header.metadata.get("tokenizer.ggml.pre", "gpt-2"))

    def _default_add_bos(self) -> bool:
        return self._is_sentencepiece or begins_with_bos(self._pre)

    @property
    def _architecture(self) -> str:
        return str(self._header.metadata.get("general.architecture"))

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

    def _token_id(self, name: str, in_sentencepiece: int | None = None) -> int | None:
        """Return the id of a named token; SentencePiece has places for some."""
        default = in_sentencepiece if self._is_sentencepiece else None
        value = self._header.metadata.get(f"tokenizer.ggml.{name}_token_id", default)
        if not isinstance(value, int) or not 0 <= value < self.config.vocab_size:
            return None
        return value

    def _rope_factors(self) -> dict[str, tuple[float, ...]]:
        return {
            tensor.name: _read_floats(self.path, tensor)
            for tensor in self._header.tensors
            if tensor.name in ROPE_TENSORS
        }

    def _text(self, token_id: int | None) -> str | None:
        tokens = self._vocabulary.tokens
        return None if token_id is None or token_id >= len(tokens) else tokens[token_id]

    def _entry_of(self, tensor: GgufTensor) -> TensorEntry:
        kind, num_bytes = _stored_as(tensor)
        if tensor.offset + num_bytes > self._header.file_bytes:
            raise CheckpointError(f"{self.path.name} ends inside tensor {tensor.name}")
        name = hugging_face_name(tensor.name, self._architecture)
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
        if self._architecture != "llama":
            return None
        if ".q_proj." in name:
            return self.config.num_heads
        return self.config.num_kv_heads if ".k_proj." in name else None


def _common_dtype(tensors: Sequence[GgufTensor]) -> str | None:
    """Return the dtype of the matrices, if they are all plain and alike; vectors are float32."""
    kinds = {tensor.type_id for tensor in tensors if len(tensor.shape) > 1}
    return _PLAIN_DTYPES.get(kinds.pop()) if len(kinds) == 1 else None


def _read_floats(path: Path, tensor: GgufTensor) -> tuple[float, ...]:
    """Read a short vector without numpy, which the gateway does without."""
    (count, *more) = tensor.shape
    if tensor.type_id != _F32 or more or count > _MAX_FACTORS:
        raise CheckpointError(f"tensor {tensor.name} is no vector of RoPE factors")
    try:
        with path.open("rb") as file:
            file.seek(tensor.offset)
            return struct.unpack(f"<{count}f", file.read(count * 4))
    except (OSError, struct.error, OverflowError, ValueError) as error:
        raise CheckpointError(f"{path.name} ends inside tensor {tensor.name}") from error


def _stored_as(tensor: GgufTensor) -> tuple[str, int]:
    """Return the kind's name and the size in bytes."""
    kind = KINDS.get(tensor.type_id)
    if kind is None:
        raise UnsupportedModelError(f"tensor {tensor.name} is of the unknown type {tensor.type_id}")
    blocks, rest = divmod(tensor.shape[-1], kind.block_values)
    if 0 in tensor.shape:
        raise CheckpointError(f"tensor {tensor.name} is empty")
    if rest:
        raise CheckpointError(f"rows of tensor {tensor.name} are no whole blocks of {kind.name}")
    rows = 1
    for dimension in tensor.shape[:-1]:
        rows *= dimension
    return kind.name, rows * blocks * kind.block_bytes
