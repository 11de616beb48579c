"""A checkpoint in Hugging Face layout: JSON files and safetensors in one directory."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine.checkpoint.checkpoint import Checkpoint
from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.files import read_small
from engine.checkpoint.model_config import config_from_hugging_face
from engine.checkpoint.safetensors_index import index_directory
from engine.checkpoint.tensors import TensorEntry

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class HuggingFaceCheckpoint(Checkpoint):
    """Reads the small JSON files at opening; tokenizer and tensors when asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        fields = _read_json(path / "config.json", required=True)
        self.config = config_from_hugging_face(fields)
        generation = _read_json(path / "generation_config.json")
        settings = _read_json(path / "tokenizer_config.json")
        self.eos_token = _token_text(settings.get("eos_token"))
        self.bos_token = _token_text(settings.get("bos_token"))
        self.bos_token_id = _first_id(generation.get("bos_token_id"), fields.get("bos_token_id"))
        self.eos_token_ids = _ids(generation.get("eos_token_id")) or _ids(
            fields.get("eos_token_id")
        )
        self.add_bos = bool(settings.get("add_bos_token", False))
        self.chat_template = _chat_template(path, settings)

    @cached_property
    def tensors(self) -> dict[str, TensorEntry]:
        """Return the tensor index by name."""
        return index_directory(self.path)

    def tokenizer(self) -> "Tokenizer":
        """Load `tokenizer.json`."""
        from tokenizers import Tokenizer  # noqa: PLC0415

        content = read_small(self.path / "tokenizer.json")
        try:
            return Tokenizer.from_buffer(content)
        except Exception as error:  # the binding raises plain Exception
            raise CheckpointError(f"tokenizer.json cannot be read: {error}") from error


def _read_json(file: Path, *, required: bool = False) -> dict[str, Any]:
    if not required and not file.exists():
        return {}
    try:
        return msgspec.json.decode(read_small(file), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{file.name} cannot be read: {error}") from error


def _ids(value: object) -> tuple[int, ...]:
    """Return the token ids of a field that holds one id, a list of them or nothing."""
    values: list[object] = value if isinstance(value, list) else [value]
    return tuple(item for item in values if isinstance(item, int) and not isinstance(item, bool))


def _first_id(*values: object) -> int | None:
    found = [token_id for value in values for token_id in _ids(value)]
    return found[0] if found else None


def _token_text(value: object) -> str | None:
    """Return the text of a token that is written as a string or as an added-token object."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _chat_template(path: Path, settings: dict[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.exists():
        try:
            return read_small(file).decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{file.name} cannot be read: {error}") from error
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = [item for item in template if isinstance(item, dict)]
        template = next((t.get("template") for t in named if t.get("name") == "default"), None)
    return template if isinstance(template, str) else None
