"""Hub models in the model directory: one folder for each commit, and which revision is which.

<model directory>/hub/Qwen--Qwen3-0.6B/revisions.json
<model directory>/hub/Qwen--Qwen3-0.6B/<commit>/config.json, model.safetensors, ...
<model directory>/hub/Qwen--Qwen3-0.6B/<commit>/hub.json
<model directory>/hub/Qwen--Qwen3-0.6B/.partial-<commit>/    a download that was interrupted

A commit counts as here when its record is, and every file that it lists has its size.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

RECORD_NAME = "hub.json"
_REVISIONS_NAME = "revisions.json"
_FOLDER = "hub"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")
DEFAULT_REVISION = "main"


@dataclass(frozen=True, slots=True)
class HubReference:
    """What a user asks a hub for."""

    repository: str
    """`org/name`."""
    revision: str = DEFAULT_REVISION
    """Branch, tag or commit."""


@dataclass(frozen=True, slots=True)
class HubModel:
    """A hub model that is here, whole."""

    repository: str
    commit: str
    path: Path
    num_bytes: int


class HubRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was downloaded."""

    repository: str
    commit: str
    files: dict[str, int]
    """Names and sizes in bytes."""


def hub_reference(model: str, revision: str | None = None) -> HubReference | None:
    """Read `org/name` or `org/name@revision`; None if it cannot be one.

    A revision in the name wins over `revision`.
    """
    repository, at, own = model.partition("@")
    asked = own if at else revision or DEFAULT_REVISION
    if not _ID.fullmatch(repository) or not _REVISION.fullmatch(asked):
        return None
    return HubReference(repository, asked)


def folder_of(repository: str, model_dir: Path) -> Path:
    """Return where the commits of a repository lie, pulled or not."""
    return model_dir / _FOLDER / repository.replace("/", "--")


def partial_folder(repository: str, commit: str, model_dir: Path) -> Path:
    """Return where a commit is downloaded to before it is whole."""
    return folder_of(repository, model_dir) / f".partial-{commit}"


def find_hub_model(reference: HubReference, model_dir: Path) -> HubModel | None:
    """Return the model that a revision was resolved to when it was last pulled."""
    folder = folder_of(reference.repository, model_dir)
    commit = _revisions(folder).get(reference.revision, reference.revision)
    return _whole(folder / commit) if _COMMIT.fullmatch(commit) else None


def pulled_hub_models(model_dir: Path) -> list[HubModel]:
    """Return every hub model that is here."""
    records = sorted((model_dir / _FOLDER).glob(f"*/*/{RECORD_NAME}"))
    found = [_whole(record.parent) for record in records]
    return [model for model in found if model is not None]


def install(record: HubRecord, reference: HubReference, partial: Path, model_dir: Path) -> HubModel:
    """Give a finished download its place, and note which commit the revision is.

    Raises:
        OSError: the disk is full, or not writable.
    """
    folder = folder_of(record.repository, model_dir)
    (partial / RECORD_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(record)))
    target = folder / record.commit
    shutil.rmtree(target, ignore_errors=True)  # a damaged one
    partial.replace(target)
    for abandoned in folder.glob(".partial-*"):  # of commits that were never finished
        shutil.rmtree(abandoned, ignore_errors=True)
    note_revision(reference, record.commit, model_dir)
    return HubModel(record.repository, record.commit, target, sum(record.files.values()))


def note_revision(reference: HubReference, commit: str, model_dir: Path) -> None:
    """Write down which commit a revision is."""
    folder = folder_of(reference.repository, model_dir)
    revisions = _revisions(folder) | {reference.revision: commit}
    written = folder / f".{_REVISIONS_NAME}"
    written.write_bytes(msgspec.json.format(msgspec.json.encode(revisions)))
    written.replace(folder / _REVISIONS_NAME)


def _revisions(folder: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode((folder / _REVISIONS_NAME).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}


def _whole(path: Path) -> HubModel | None:
    try:
        record = msgspec.json.decode((path / RECORD_NAME).read_bytes(), type=HubRecord)
        sizes = {name: (path / name).stat().st_size for name in record.files}
    except (OSError, msgspec.MsgspecError):
        return None
    if sizes != record.files:
        return None
    return HubModel(record.repository, path.name, path, sum(sizes.values()))
