"""A checkpoint in Hugging Face layout: JSON files and safetensors in one directory."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine.checkpoint.checkpoint import Checkpoint
from engine.checkpoint.errors import CheckpointError, UnsupportedModelError
from engine.checkpoint.files import read_small
from engine.checkpoint.model_config import (
    MULTIMODAL_GEMMA3,
    config_from_hugging_face,
    named_architecture,
)
from engine.checkpoint.safetensors_index import index_directory
from engine.checkpoint.tensors import TensorEntry

if TYPE_CHECKING:
    from tokenizers import Tokenizer


_TEXT_PREFIXES = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
    "lm_head.": "lm_head.",
}
"""Of multimodal checkpoints, as older and newer releases of transformers save them."""


class HuggingFaceCheckpoint(Checkpoint):
    """Reads the small JSON files at opening; tokenizer and tensors when asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        fields = _read_json(path / "config.json", required=True)
        self.config = config_from_hugging_face(fields)
        self._is_multimodal = named_architecture(fields) == MULTIMODAL_GEMMA3
        generation = _read_json(path / "generation_config.json")
        settings = _read_json(path / "tokenizer_config.json")
        self.eos_token = _token_text(settings.get("eos_token"))
        self.bos_token = _token_text(settings.get("bos_token"))
        sources = (generation, fields, fields.get("text_config") or {})
        self.bos_token_id = _first_id([source.get("bos_token_id") for source in sources])
        named = (_ids(source.get("eos_token_id")) for source in sources)
        self.eos_token_ids = next((found for found in named if found), ())
        self.add_bos = bool(settings.get("add_bos_token", False))
        self.chat_template = _chat_template(path, settings)

    @cached_property
    def tensors(self) -> dict[str, TensorEntry]:
        """Return the tensor index by name."""
        tensors = index_directory(self.path)
        return _text_tensors(tensors) if self._is_multimodal else tensors

    def tokenizer(self) -> "Tokenizer":
        """Load `tokenizer.json`."""
        from tokenizers import Tokenizer  # noqa: PLC0415

        file = self.path / "tokenizer.json"
        if not file.exists() and (self.path / "tokenizer.model").exists():
            raise CheckpointError(
                "tokenizer.json is missing, and tokenizer.model alone is not read: save the model "
                "with transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            )
        content = read_small(file)
        try:
            return Tokenizer.from_buffer(content)
        except Exception as error:  # the binding raises plain Exception
            raise CheckpointError(f"tokenizer.json cannot be read: {error}") from error


def _text_tensors(tensors: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
    """Keep the text model of a multimodal checkpoint, under the names that it has alone.

    Raises:
        UnsupportedModelError: no text model is found.
    """
    found: dict[str, TensorEntry] = {}
    for name, entry in tensors.items():
        for prefix, own in _TEXT_PREFIXES.items():
            if name.startswith(prefix):
                own_name = own + name.removeprefix(prefix)
                found[own_name] = msgspec.structs.replace(entry, name=own_name)
                break
    if "model.embed_tokens.weight" not in found:
        raise UnsupportedModelError(
            f"no text model was found in this {MULTIMODAL_GEMMA3}; supported: tensors whose names "
            f"begin with {', '.join(_TEXT_PREFIXES)}"
        )
    return found


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


def _first_id(values: Sequence[object]) -> int | None:
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
    if template is None:
        template = _read_json(path / "chat_template.json").get("chat_template")
    if isinstance(template, list):
        named = [item for item in template if isinstance(item, dict)]
        template = next((t.get("template") for t in named if t.get("name") == "default"), None)
    return template if isinstance(template, str) else None
