"""Turns what people write for a setting (`512MiB`, `4k`, `a,b`) into what `Settings` takes."""

import re
from pathlib import Path
from types import MappingProxyType
from typing import Any

SECRET_KEYS = frozenset({"api_key", "admin_key"})
PATH_LIST_KEYS = frozenset({"adapter_root"})
LIST_KEYS = SECRET_KEYS | PATH_LIST_KEYS | {"served_model_name", "cors_origin", "allowed_host"}
PATH_KEYS = frozenset(
    {"api_key_file", "admin_key_file", "tls_cert", "tls_key", "state_dir", "model_dir"}
)
SWITCHED_PATH_KEYS = frozenset({"weight_cache"})
"""`off` and `auto` are no paths."""
BYTE_KEYS = frozenset(
    {"kv_cache_bytes", "trace_store_bytes", "profile_store_bytes", "weight_cache_bytes"}
)
LENGTH_KEYS = frozenset({"max_model_len", "max_num_batched_tokens", "long_prefill_threshold"})
BOOLEAN_KEYS = frozenset(
    {"strict_parameters", "no_auth", "prefix_caching", "predict_lengths", "trace_content"}
)
TABLE_KEYS = frozenset({"tenant_weights", "slo"})
AUTOMATIC_KEYS = frozenset(
    {"dtype", "max_model_len", "kv_cache_bytes", "num_threads", "weight_cache"}
)
"""`auto` means: leave it to the engine, or to the platform."""
OFF = "off"

_POWERS = MappingProxyType({"": 0, "k": 1, "m": 2, "g": 3, "t": 4})
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b?)\s*", re.IGNORECASE)
_BINARY, _DECIMAL = 1024, 1000


def parse_size(text: str) -> int:
    """Return the number that `text` means: `1.5g`, `512MiB` and `4k` count in 1024, `2GB` in 1000.

    Raises:
        ValueError: it is not such a number, or not a whole one.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 4096, 4k, 512MiB or 1.5g")
    number, prefix, unit = match.groups()
    base = _DECIMAL if unit.lower() == "b" else _BINARY
    size = float(number) * base ** _POWERS[prefix.lower()]
    if not size.is_integer():
        raise ValueError(f"{text!r} is not a whole number")
    return int(size)


def convert(key: str, value: Any, base: Path) -> Any:
    """Return the value of one setting; relative paths start at `base`.

    Raises:
        ValueError: the text cannot be read; the message says what can.
    """
    if isinstance(value, bool) and key not in BOOLEAN_KEYS:
        raise ValueError(f"{str(value).lower()} is a boolean")
    if key in SWITCHED_PATH_KEYS and (not value or not isinstance(value, str | Path)):
        raise ValueError(f"{value!r} is neither a directory nor off")
    if isinstance(value, str):
        value = _convert_text(key, value, base)
    if key in PATH_LIST_KEYS and isinstance(value, list):
        return [base / Path(item).expanduser() for item in value]
    if isinstance(value, Path):
        return base / value.expanduser()
    return value


def _convert_text(key: str, text: str, base: Path) -> Any:
    if key in AUTOMATIC_KEYS and text.lower() == "auto":
        return None
    if key in BYTE_KEYS or key in LENGTH_KEYS:
        return parse_size(text)
    if key in LIST_KEYS:
        return [part.strip() for part in text.split(",") if part.strip()]
    return _text_or_path(key, text, base)


def _text_or_path(key: str, text: str, base: Path) -> Any:
    if key in TABLE_KEYS:
        return _table(text)
    if key in SWITCHED_PATH_KEYS:
        return OFF if text.lower() == OFF else base / Path(text).expanduser()
    return base / Path(text).expanduser() if key in PATH_KEYS else text


def _table(text: str) -> dict[str, str]:
    """Read `key=value,key=value`."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not name.strip() or not sign for name, sign, _ in pairs):
        raise ValueError(f"{text!r} is not a list such as name=2,other=0.5")
    return {name.strip(): value.strip() for name, _, value in pairs}
