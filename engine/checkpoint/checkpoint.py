"""A model on disk: its configuration, tokenizer, chat template and tensors, without torch.

Importing this module is cheap; numpy, gguf and tokenizers are loaded when they are first needed,
so that the gateway can use it for the tokenizer alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.checkpoint.errors import CheckpointError, UnsupportedModelError
from engine.checkpoint.model_config import ModelConfig
from engine.checkpoint.tensors import TensorEntry, read_pieces, read_tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

__all__ = ["Checkpoint", "CheckpointError", "UnsupportedModelError", "open_checkpoint"]


class Checkpoint(ABC):
    """An opened checkpoint. Attributes are read at opening, methods read files.

    Attributes:
        path: The `.gguf` file or the directory.
        config: Sizes and constants of the model.
        eos_token_ids: Tokens that end a generation.
        bos_token_id: First token of a text, where the model knows one.
        bos_token: Its text, as chat templates use it.
        eos_token: Text of the first end token.
        add_bos: Whether `bos_token_id` must be put in front of every prompt.
        chat_template: Jinja source.
    """

    path: Path
    config: ModelConfig
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    bos_token: str | None
    eos_token: str | None
    add_bos: bool
    chat_template: str | None

    @property
    def architecture(self) -> str:
        """Return the Hugging Face name of the model class."""
        return self.config.architecture

    @abstractmethod
    def tokenizer(self) -> "Tokenizer":
        """Build the tokenizer; the caller keeps it."""

    @cached_property
    @abstractmethod
    def tensors(self) -> dict[str, TensorEntry]:
        """Return the tensor index by Hugging Face name."""

    def read(self, name: str) -> "NDArray[Any]":
        """Read one tensor, see `read_pieces`."""
        return read_tensor(self._entry(name))

    def read_pieces(self, name: str) -> Iterator[tuple[int, "NDArray[Any]"]]:
        """Read one tensor in pieces of whole rows, so that little memory is needed.

        Yields:
            First row, values: float32 (dequantized), float16, or uint16 bits for `BF16`.
        """
        return read_pieces(self._entry(name))

    def stacked(self, names: Sequence[str], shape: Sequence[int]) -> list[TensorEntry]:
        """Return tensors that, one below the other, have a shape.

        Raises:
            CheckpointError: one is missing, or they have another shape.
        """
        entries: list[TensorEntry] = []
        for name in names:
            entry = self._entry(name)
            if entry.shape[1:] != tuple(shape[1:]):
                raise CheckpointError(
                    f"tensor {name} has shape {entry.shape}, the configuration says "
                    f"{tuple(shape[1:])} for its inner dimensions"
                )
            entries.append(entry)
        rows = sum(entry.num_rows for entry in entries)
        if rows != shape[0]:
            raise CheckpointError(
                f"tensors {', '.join(names)} have {rows} rows, the configuration says {shape[0]}"
            )
        return entries

    def _entry(self, name: str) -> TensorEntry:
        try:
            return self.tensors[name]
        except KeyError:
            raise CheckpointError(f"{self.path.name} has no tensor {name}") from None


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a `.gguf` file or a Hugging Face directory.

    Raises:
        CheckpointError: it is missing, truncated or corrupt.
        UnsupportedModelError: it holds a model that cannot be run; names what is supported.
    """
    if path.is_dir():
        from engine.checkpoint.hugging_face import HuggingFaceCheckpoint  # noqa: PLC0415

        return HuggingFaceCheckpoint(path)
    if not path.exists():
        raise CheckpointError(f"{path} does not exist")
    if path.suffix == ".gguf":
        from engine.checkpoint.gguf_checkpoint import GgufCheckpoint  # noqa: PLC0415

        return GgufCheckpoint(path)
    raise CheckpointError(f"{path.name} is neither a directory nor a .gguf file")
