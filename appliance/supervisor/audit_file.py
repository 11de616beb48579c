"""The file of the audit log: appended by one thread, repaired at its start, never rewritten."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from appliance.supervisor.audit_chain import (
    CONTINUED,
    LOST,
    RECOVERED,
    START,
    SYSTEM_ACTOR,
    SYSTEM_METHOD,
    TRUNCATED,
    Entry,
    Head,
    Verdict,
    canonical,
    chained,
    parse,
    verify,
)

AUDIT_FILE = "audit.jsonl"
READ_BYTES = 256 << 10


class AuditFile:
    """Appends entries to the chain; use it from one thread.

    Args:
        path: The file, mode 0600.
        remembered: The last entry that the state database knows.
    """

    def __init__(self, path: Path, remembered: Head) -> None:
        self._path = path
        self._remembered = remembered
        self._fd: int | None = None
        self._size = 0
        self.head = remembered
        """The last entry that was written."""
        self._missing = 0

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write an entry; before it, what has to be said of the file. Raises OSError."""
        self.open(str(entry["at"]))
        if self._missing:
            text = f"{self._missing} entries could not be written"
            self._write(_system_entry(str(entry["at"]), LOST, text))
            self._missing = 0
        self._write(entry)

    def lose(self) -> None:
        """Remember that an entry could not be written."""
        self._missing += 1

    def sync(self) -> None:
        """Bring what was written to the disk. Raises OSError."""
        if self._fd is not None:
            os.fsync(self._fd)

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def open(self, at: str) -> None:
        """Open the file, if it is not, and enter what is wrong with it. Raises OSError."""
        if self._fd is not None:
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._path, flags, 0o600)
        try:
            torn_bytes, found = _end_of(fd)
            if torn_bytes:
                os.ftruncate(fd, os.fstat(fd).st_size - torn_bytes)
        except BaseException:
            os.close(fd)
            raise
        self._fd, self._size = fd, os.fstat(fd).st_size
        for entry in self._remarks(at, torn_bytes, found):
            self._write(entry)

    def _remarks(self, at: str, torn_bytes: int, found: Head | None) -> Iterator[Entry]:
        """Set the head, and yield what the chain must say of the file."""
        remembered, self.head = self._remembered, found or START
        if torn_bytes:
            yield _system_entry(at, RECOVERED, f"{torn_bytes} bytes of a torn last line cut off")
        if found is None and remembered.seq:
            self.head = remembered
            yield _system_entry(at, CONTINUED, f"a new file after entry {remembered.seq}")
        elif found is not None and found.seq < remembered.seq:
            text = f"entries {found.seq + 1} to {remembered.seq} are missing at the end"
            yield _system_entry(at, TRUNCATED, text)

    def _write(self, entry: Mapping[str, Any]) -> None:
        """Write all of a line or nothing of it."""
        assert self._fd is not None
        whole = chained(entry, self.head)
        line = canonical(whole) + b"\n"
        try:
            _write_all(self._fd, line)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            self.close()  # the next append looks at the file's end again
            self._remembered = self.head
            raise
        self._size += len(line)
        self.head = Head(whole["seq"], whole["hash"])


def verify_file(path: Path, remembered: Head | None) -> Verdict:
    """Walk the chain in a file; a file that is not there is an empty one. Raises OSError."""
    try:
        with path.open("rb") as file:
            return verify(file, remembered)
    except FileNotFoundError:
        return verify((), remembered)


def last_entries(path: Path, limit: int) -> list[Entry]:
    """Return the last entries, newest first. Raises OSError."""
    found: list[Entry] = []
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        for line in _lines_backwards(file.fileno()):
            entry = parse(line)
            if entry is not None:
                found.append(entry)
            if len(found) == limit:
                break
    return found


def remembered_head(state_path: Path) -> Head | None:
    """Return the last entry that a state database knows; None when it cannot be asked."""
    with contextlib.suppress(sqlite3.Error):
        connection = sqlite3.connect(f"file:{state_path}?mode=ro", uri=True, timeout=1.0)
        with contextlib.closing(connection):
            return read_head(connection)
    return None


def read_head(connection: sqlite3.Connection) -> Head:
    """Return the last entry that the state database knows. Raises sqlite3.Error."""
    row = connection.execute("SELECT seq, hash FROM audit_head").fetchone()
    return START if row is None else Head(int(row[0]), str(row[1]))


def write_head(connection: sqlite3.Connection, head: Head) -> None:
    """Let the state database know the last entry. Raises sqlite3.Error."""
    with connection:
        connection.execute(
            "INSERT OR REPLACE INTO audit_head (id, seq, hash) VALUES (1, ?, ?)",
            (head.seq, head.hash),
        )


def _write_all(fd: int, line: bytes) -> None:
    if os.write(fd, line) < len(line):
        raise OSError("the disk is full")


def _system_entry(at: str, route: str, target: str) -> Entry:
    """Return an entry that the audit log makes of itself."""
    return {
        "at": at,
        "actor": SYSTEM_ACTOR,
        "scope": None,
        "method": SYSTEM_METHOD,
        "route": route,
        "target": target,
        "body_sha256": None,
        "status": 0,
        "operation": None,
        "trace_id": None,
        "source": None,
    }


def _end_of(fd: int) -> tuple[int, Head | None]:
    """Return how many bytes at the end are no whole line, and the last entry."""
    torn_bytes = 0
    for index, line in enumerate(_lines_backwards(fd)):
        if index == 0 and not line.endswith(b"\n"):
            torn_bytes = len(line)
            continue
        entry = parse(line)
        if entry is not None:
            return torn_bytes, Head(entry["seq"], entry["hash"])
    return torn_bytes, None


def _lines_backwards(fd: int) -> Iterator[bytes]:
    """Yield the lines of a file with their ends, last one first."""
    at, rest = os.fstat(fd).st_size, b""
    while at > 0:
        size = min(READ_BYTES, at)
        at -= size
        chunk = os.pread(fd, size, at) + rest
        first, *whole = chunk.splitlines(keepends=True)
        yield from reversed(whole)
        rest = first
    if rest:
        yield rest
