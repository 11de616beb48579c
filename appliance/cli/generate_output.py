"""The output of `quarterdeck generate`: JSON lines that also say what is done.

A result is one write of one whole line. A process that is killed leaves whole lines and at most
the beginning of one, which the next run cuts off.
"""

import fcntl
import json
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, cast

from appliance.cli.exits import CliError, Exit

STDOUT = "-"
_CHUNK_BYTES = 1 << 16


class ResultSink(Protocol):
    """Takes results, and knows those of earlier runs."""

    done: dict[str | int, str]
    """Content hash of each id that has a result."""
    num_failed: int
    """Results with an error."""
    resumes: bool
    """Whether a next run can go on from here."""

    def write(self, record: dict[str, Any]) -> None:
        """Append a result."""
        ...


class StandardOutput:
    """Results on stdout: nothing is known of earlier runs."""

    resumes = False

    def __init__(self) -> None:
        self.done: dict[str | int, str] = {}
        self.num_failed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def write(self, record: dict[str, Any]) -> None:
        """Print a result. Raises CliError when nobody reads it."""
        try:
            sys.stdout.write(_line(record))
            sys.stdout.flush()
        except BrokenPipeError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())  # or the interpreter complains when it ends
            raise CliError("nobody reads the results any more") from error
        _count(self, record)


class ResultFile:
    """A file of results, locked while it is open.

    Args:
        path: Made if it is not there.
        restart: Forget what it holds.
        retry_errors: Forget the results that have an error.

    Raises:
        CliError: 5, another run writes it; 1, it cannot be opened; 2, it holds something else.
    """

    resumes = True

    def __init__(self, path: Path, *, restart: bool = False, retry_errors: bool = False) -> None:
        self.done: dict[str | int, str] = {}
        self.num_failed = 0
        self._path = path
        self._fd = self._open()
        try:
            if restart:
                os.ftruncate(self._fd, 0)
            self._cut_half_line()
            self._read(drop_errors=retry_errors)
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def write(self, record: dict[str, Any]) -> None:
        """Append a result. Raises CliError."""
        self._write(_line(record).encode())
        _count(self, record)

    def _open(self) -> int:
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise CliError(f"cannot open {self._path}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise CliError(f"another run writes {self._path}", Exit.CONFLICT) from error
        return fd

    def _cut_half_line(self) -> None:
        end = os.fstat(self._fd).st_size
        at = end
        while at > 0:
            start = max(0, at - _CHUNK_BYTES)
            newline = os.pread(self._fd, at - start, start).rfind(b"\n")
            if newline >= 0:
                os.ftruncate(self._fd, start + newline + 1)
                return
            at = start
        os.ftruncate(self._fd, 0)

    def _read(self, *, drop_errors: bool) -> None:
        kept: list[bytes] = []
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(0)
            for number, line in enumerate(file, 1):
                id_, content_hash, has_error = self._parse(number, line)
                if drop_errors and has_error:
                    continue
                self.done[id_] = content_hash
                self.num_failed += has_error
                if drop_errors:
                    kept.append(line)
        if drop_errors:
            os.ftruncate(self._fd, 0)
            self._write(b"".join(kept))

    def _parse(self, number: int, line: bytes) -> tuple[str | int, str, bool]:
        try:
            record = json.loads(line)
            fields = cast("dict[str, Any]", record)
            return fields["id"], str(fields["hash"]), "error" in fields
        except (ValueError, KeyError, TypeError) as error:
            raise CliError(
                f"{self._path}: line {number} is no result of `quarterdeck generate`",
                Exit.USAGE,
                "Name another --output, or overwrite it with --restart.",
            ) from error

    def _write(self, content: bytes) -> None:
        view = memoryview(content)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise CliError(f"cannot write {self._path}: {error.strerror}") from error


def open_output(target: str, *, restart: bool, retry_errors: bool) -> StandardOutput | ResultFile:
    """Open the output. Raises CliError."""
    if target == STDOUT:
        return StandardOutput()
    return ResultFile(Path(target), restart=restart, retry_errors=retry_errors)


def _count(sink: ResultSink, record: dict[str, Any]) -> None:
    sink.done[record["id"]] = record["hash"]
    sink.num_failed += "error" in record


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "replace").decode() + "\n"
