"""The output of `quarterdeck generate`: JSON lines that also say what is done.

A result is one write of one whole line. A process that is killed leaves whole lines and at most
the beginning of one, which the next run cuts off. Nothing else is ever cut: a file that holds
anything but results is refused as it is.
"""

import fcntl
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any, Protocol, Self, TextIO, cast

from appliance.cli.exits import CliError, Exit

STDOUT = "-"
_BEGINNING = b'{"id": '
"""Of every result, and so of every one that was cut short."""


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


class StreamOutput:
    """Results on stdout, a pipe or a device: nothing is known of earlier runs.

    Args:
        file: Takes them; closed at the end if it is not stdout.
        name: Of it, for messages.
    """

    resumes = False

    def __init__(self, file: TextIO, name: str = "standard output") -> None:
        self.done: dict[str | int, str] = {}
        self.num_failed = 0
        self._file = file
        self._name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not sys.stdout:
            self._file.close()

    def write(self, record: dict[str, Any]) -> None:
        """Print a result. Raises CliError when it cannot be written or nobody reads it."""
        try:
            self._file.write(_line(record).decode())
            self._file.flush()
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._file.fileno())  # or the interpreter complains when it ends
            os.close(nowhere)
            if isinstance(error, BrokenPipeError):
                raise CliError("nobody reads the results any more") from error
            raise CliError(f"cannot write {self._name}: {error.strerror}") from error
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
        self._fd = _open_locked(path)
        try:
            if restart:
                os.ftruncate(self._fd, 0)
            self._read()
            if retry_errors and self.num_failed:
                self._forget_errors()
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def write(self, record: dict[str, Any]) -> None:
        """Append a result. Raises CliError."""
        self._write(self._fd, _line(record))
        _count(self, record)

    def _read(self) -> None:
        """Learn what is done; a result that was cut short is cut off."""
        end = 0
        with os.fdopen(os.dup(self._fd), "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n") and line[: len(_BEGINNING)] == _BEGINNING[: len(line)]:
                    break
                id_, content_hash, has_error = self._parse(number, line)
                self.done[id_] = content_hash
                self.num_failed += has_error
                end += len(line)
        os.ftruncate(self._fd, end)

    def _forget_errors(self) -> None:
        """Put a file without them in the place of this one: at no moment are results missing."""
        path = self._path.resolve()
        written = path.with_name(f".{path.name}.new")
        fd = _open_locked(written)
        os.ftruncate(fd, 0)
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(0)
            for number, line in enumerate(file, 1):
                id_, _, has_error = self._parse(number, line)
                if has_error:
                    del self.done[id_]
                else:
                    self._write(fd, line)
        os.fchmod(fd, stat.S_IMODE(os.fstat(self._fd).st_mode))
        written.replace(path)
        os.close(self._fd)
        self._fd = fd
        self.num_failed = 0

    def _parse(self, number: int, line: bytes) -> tuple[str | int, str, bool]:
        try:
            fields = cast("dict[str, Any]", json.loads(line))
            hash(fields["id"])
            return fields["id"], str(fields["hash"]), "error" in fields
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CliError(
                f"{self._path}: line {number} is no result of `quarterdeck generate`",
                Exit.USAGE,
                "Name another --output, or overwrite it with --restart.",
            ) from error

    def _write(self, fd: int, content: bytes) -> None:
        view = memoryview(content)
        try:
            while view:
                view = view[os.write(fd, view) :]
        except OSError as error:
            raise CliError(f"cannot write {self._path}: {error.strerror}") from error


def open_output(target: str, *, restart: bool, retry_errors: bool) -> StreamOutput | ResultFile:
    """Open the output; what is no file, such as a pipe, is written like stdout. Raises CliError."""
    if target == STDOUT:
        return StreamOutput(sys.stdout)
    path = Path(target)
    if path.exists() and not path.is_file() and not path.is_dir():
        try:
            return StreamOutput(path.open("w", encoding="utf-8"), target)
        except OSError as error:
            raise CliError(f"cannot open {path}: {error.strerror}") from error
    return ResultFile(path, restart=restart, retry_errors=retry_errors)


def _open_locked(path: Path) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise CliError(f"cannot open {path}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise CliError(f"another run writes {path}", Exit.CONFLICT) from error
    return fd


def _count(sink: ResultSink, record: dict[str, Any]) -> None:
    sink.done[record["id"]] = record["hash"]
    sink.num_failed += "error" in record


def _line(record: dict[str, Any]) -> bytes:
    """Return a line in UTF-8; half a surrogate pair, which has no UTF-8, stays an escape."""
    try:
        return (json.dumps(record, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:
        return (json.dumps(record) + "\n").encode()
