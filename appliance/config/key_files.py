"""Reads files of keys: one key a line, blank lines and `#` comments left out."""

import re
from pathlib import Path

_KEY = re.compile(r"[\x21-\x7e]{1,512}")


class BadKeyError(ValueError):
    """A configured key cannot be used. The message never holds the key."""


def read_keys(path: Path) -> list[str]:
    """Return the keys in `path`, in order.

    Raises:
        BadKeyError: the file cannot be read, holds no key, or a line is no usable key.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadKeyError(f"cannot read the key file {path}: {reason}") from error
    keys: list[str] = []
    for number, line in enumerate(lines, start=1):
        key = line.strip()
        if key and not key.startswith("#"):
            check_key(key, f"{path}, line {number}")
            keys.append(key)
    if not keys:
        raise BadKeyError(f"the key file {path} holds no key")
    return keys


def check_key(key: str, where: str) -> None:
    """Refuse a key that an `Authorization` header could not carry.

    Raises:
        BadKeyError: it is empty, too long, or has blanks or characters beyond ASCII.
    """
    if not _KEY.fullmatch(key):
        raise BadKeyError(f"{where}: a key is 1 to 512 visible ASCII characters without blanks")
