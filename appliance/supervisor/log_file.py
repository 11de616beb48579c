"""The log file of the appliance: JSON lines, private, rotated by size; a full disk costs lines."""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from engine.log_lines import parse_line

LOG_DIRECTORY = "logs"
LOG_FILE = "quarterdeck.jsonl"
FILES = 5
FILE_BYTES = 8 << 20
TAIL_BYTES = 512 << 10


class LogFile:
    """Appends lines; use it from one thread.

    Args:
        directory: Made if need be, mode 0700.
        file_bytes: Size at which a new file begins.
        files: How many are kept, the one that is written included.
    """

    def __init__(self, directory: Path, file_bytes: int = FILE_BYTES, files: int = FILES) -> None:
        self._path = directory / LOG_FILE
        self._file_bytes = file_bytes
        self._files = files
        self._fd: int | None = None
        self._size = 0
        self._is_torn = False

    def write(self, lines: Sequence[str]) -> int:
        """Append lines; return how many of them were lost."""
        for index, line in enumerate(lines):
            try:
                self._append(line)
            except OSError:
                self.close()
                return len(lines) - index
        return 0

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _append(self, line: str) -> None:
        content = line.encode(errors="backslashreplace") + b"\n"
        if self._fd is None:
            self._open()
        if self._size and self._size + len(content) > self._file_bytes:
            self._rotate()
        assert self._fd is not None
        if self._is_torn:
            content = b"\n" + content
        written = os.write(self._fd, content)
        self._size += written
        self._is_torn = written < len(content)
        if self._is_torn:
            raise OSError("the disk is full")

    def _open(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._fd).st_size
        self._is_torn = self._size > 0 and os.pread(self._fd, 1, self._size - 1) != b"\n"

    def _rotate(self) -> None:
        self.close()
        for number in range(self._files - 1, 0, -1):
            older = _numbered(self._path, number)
            newer = _numbered(self._path, number - 1)
            if newer.exists():
                newer.replace(older)
        self._open()


def last_lines(directory: Path, limit: int, max_bytes: int = TAIL_BYTES) -> list[dict[str, Any]]:
    """Return the fields of the last lines in the file and, if it is short, the one before it.

    Args:
        directory: As of `LogFile`.
        limit: Most lines.
        max_bytes: Most bytes to read of each file.
    """
    found: deque[dict[str, Any]] = deque(maxlen=limit)
    for number in (1, 0):
        try:
            content = _tail(_numbered(directory / LOG_FILE, number), max_bytes)
        except OSError:
            continue
        found.extend(_parsed(content))
    return list(found)


def all_lines(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the fields of every line that is kept, oldest first. Raises OSError."""
    for number in range(FILES - 1, -1, -1):
        path = _numbered(directory / LOG_FILE, number)
        if number == 0 or path.exists():
            yield from _parsed(path.read_bytes())


def _parsed(content: bytes) -> Iterator[dict[str, Any]]:
    for line in content.split(b"\n"):
        fields = parse_line(line.decode(errors="replace"))
        if fields is not None:
            yield fields


def _tail(path: Path, max_bytes: int) -> bytes:
    """Return the last bytes, from the beginning of a line."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - max_bytes))
        content = file.read()
    return content if size <= max_bytes else content.partition(b"\n")[2]


def _numbered(path: Path, number: int) -> Path:
    return path if number == 0 else path.with_name(f"{path.name}.{number}")
