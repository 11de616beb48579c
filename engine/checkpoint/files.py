"""Opens only what is a file: a pipe or a device in a model's place would block a start for ever."""

from pathlib import Path

from engine.checkpoint.errors import CheckpointError

MAX_TEXT_BYTES = 256 << 20
"""Of a file that is read as a whole: the largest tokenizers have some 30 MiB."""


def regular_file(file: Path) -> Path:
    """Return `file` itself.

    Raises:
        CheckpointError: it is missing, out of reach, or no regular file.
    """
    try:
        is_regular = file.is_file()
    except OSError as error:
        raise CheckpointError(f"{file.name}: {error}") from error
    if not is_regular:
        raise CheckpointError(f"{file.name} is missing or no regular file")
    return file


def read_small(file: Path) -> bytes:
    """Return the content of a file.

    Raises:
        CheckpointError: it is no regular file, too large, or cannot be read.
    """
    try:
        if regular_file(file).stat().st_size > MAX_TEXT_BYTES:
            raise CheckpointError(f"{file.name} has more than {MAX_TEXT_BYTES} bytes")
        return file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{file.name} cannot be read: {error}") from error
