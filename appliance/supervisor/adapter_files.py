"""Checks of a LoRA adapter before an engine hears of it: its name, and where its files really are.

Nothing outside the adapter roots is opened, and what is there or not outside of them is not told.
"""

import json
import os
import re
import stat
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from appliance.supervisor.admin.ports import RefusedError

MAX_CONFIG_BYTES: Final = 1 << 20
NOT_FOUND: Final = "adapter_not_found"
INVALID: Final = "invalid_adapter"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CONFIG: Final = "adapter_config.json"
_FILES: Final = (_CONFIG, "adapter_model.safetensors")


def check_name(name: str, served_names: Collection[str]) -> None:
    """Refuse a name that no adapter can have.

    Raises:
        RefusedError: it is malformed, or the name of a served model.
    """
    if not _NAME.fullmatch(name):
        hint = "Letters, digits, dot, dash and underscore; 1 to 64, the first a letter or digit."
        raise RefusedError(INVALID, "this cannot be the name of an adapter", hint)
    if name in served_names:
        raise RefusedError(INVALID, f"{name} is the name of a served model", "Choose another name.")


def find_adapter(path: str, roots: Sequence[Path]) -> Path:
    """Return the adapter's directory without symbolic links, once it looks like an adapter.

    Blocks on the disk for a moment.

    Raises:
        RefusedError: it is not below a root, or is no PEFT LoRA adapter.
    """
    directory = _inside(path, roots)
    for name in _FILES:
        _check_file(directory / name, roots)
    _check_config(directory / _CONFIG)
    return directory


def _inside(path: str, roots: Sequence[Path]) -> Path:
    """Resolve a directory; one answer for all that is outside, whether it exists or not."""
    try:
        found = Path(path).resolve(strict=True)
        is_inside = any(found.is_relative_to(root.resolve()) for root in roots)
        if is_inside and Path(path).is_absolute() and found.is_dir():
            return found
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, a loop of links, no access
        pass
    hint = "Give the absolute path of a directory; `serve --adapter-root DIR` allows another root."
    raise RefusedError(NOT_FOUND, "there is no such directory below an adapter root", hint)


def _check_file(path: Path, roots: Sequence[Path]) -> None:
    """Links may lead from file to file below the roots, as download caches have them."""
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
        is_inside = any(path.resolve().is_relative_to(root.resolve()) for root in roots)
    except (OSError, RuntimeError):
        is_file = is_inside = False
    if not (is_file and is_inside):
        hint = "PEFT's save_pretrained() writes adapter_config.json and adapter_model.safetensors."
        raise RefusedError(INVALID, f"the adapter has no readable file {path.name}", hint)


def _check_config(path: Path) -> None:
    try:
        found = json.loads(_read(path))
    except (OSError, ValueError, RecursionError) as error:
        raise RefusedError(INVALID, f"{path.name} cannot be read as JSON") from error
    kind = found.get("peft_type") if isinstance(found, dict) else None
    if kind != "LORA":
        raise RefusedError(INVALID, f"{path.name} is not the configuration of a LoRA adapter")


def _read(path: Path) -> bytes:
    """Read a small regular file; a pipe that took its place meanwhile must not block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_CONFIG_BYTES:
            raise ValueError("no small file")
        return file.read(MAX_CONFIG_BYTES)
