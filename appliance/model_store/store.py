"""The model directory: one folder for each pulled pack, with a record of what is in it.

<model directory>/.lock
<model directory>/smollm2/pack.json
<model directory>/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
"""

import fcntl
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from appliance.model_store.packs import ModelStoreError, Pack

RECORD_NAME = "pack.json"


class PulledPack(msgspec.Struct, frozen=True, kw_only=True):
    """Where a pulled file came from, and its own hash."""

    name: str
    source: str = ""
    """The wheels; records of the first release name theirs otherwise."""
    licence: str
    file: str
    """Name beside the record."""
    file_sha256: str
    file_bytes: int


def folder_of(pack: Pack, model_dir: Path) -> Path:
    """Return where a pack lies, pulled or not."""
    return model_dir / pack.name


def file_of(pack: Pack, model_dir: Path) -> Path:
    """Return the path that the pack's model has, pulled or not."""
    return folder_of(pack, model_dir) / pack.file


def find_pulled(pack: Pack, model_dir: Path) -> PulledPack | None:
    """Return the record of a pack that is here, whole, and the one that the table names."""
    try:
        written = (folder_of(pack, model_dir) / RECORD_NAME).read_bytes()
        record = msgspec.json.decode(written, type=PulledPack)
        size_bytes = file_of(pack, model_dir).stat().st_size
    except (OSError, msgspec.MsgspecError):
        return None
    is_current = record.file_sha256 == pack.file_sha256 and record.file_bytes == size_bytes
    return record if is_current else None


@contextmanager
def store_lock(model_dir: Path, on_wait: Callable[[], None]) -> Generator[None, None, None]:
    """Hold the only right to change the model directory; the kernel frees it if we die.

    `on_wait` is called once if somebody else holds it.

    Raises:
        ModelStoreError: the directory cannot be made or written.
    """
    try:
        model_dir.mkdir(parents=True, exist_ok=True)
        lock = (model_dir / ".lock").open("a")
    except OSError as error:
        raise ModelStoreError(f"cannot write to {model_dir}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
