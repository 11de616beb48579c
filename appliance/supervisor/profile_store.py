"""The profiles on disk: a directory each, with its row; bounded, the oldest go first."""

import logging
import os
import shutil
from pathlib import Path

from pydantic import ValidationError

from appliance.supervisor.admin.ports import NotFoundError
from appliance.supervisor.admin.schemas import ProfileFile, ProfileRow

logger = logging.getLogger(__name__)

DIRECTORY = "profiles"
ROW_FILE = "profile.json"
CUT_SHORT = "the appliance ended while it was taken"


class ProfileStore:
    """Holds the rows of all profiles; their files lie below the state directory.

    Args:
        directory: `<state directory>/profiles`; made when it is needed, mode 0700.
        max_bytes: Of all files together.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._rows = _load(directory)

    def rows(self) -> list[ProfileRow]:
        """Return all, newest first."""
        return sorted(self._rows.values(), key=lambda row: row.created_at, reverse=True)

    def row(self, profile_id: str) -> ProfileRow:
        """Return one. Raises NotFoundError."""
        found = self._rows.get(profile_id)
        if found is None:
            raise NotFoundError(f"there is no profile {profile_id!r}")
        return found

    def directory_of(self, profile_id: str) -> Path:
        """Return where a profile's files lie."""
        return self._directory / self.row(profile_id).id

    def file(self, profile_id: str, name: str) -> Path:
        """Return the path of a file that the row names and that is there. Raises NotFoundError."""
        is_named = any(file.name == name for file in self.row(profile_id).files)
        path = self.directory_of(profile_id) / name
        if not is_named or not path.is_file():
            raise NotFoundError(f"profile {profile_id} has no file {name!r}")
        return path

    def add(self, row: ProfileRow) -> None:
        """Enter a profile and make its directory. Raises OSError."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._directory / row.id).mkdir(mode=0o700)
        self._rows[row.id] = row
        self._write(row)

    def change(self, row: ProfileRow) -> None:
        """Replace a row, if the profile is still there."""
        if row.id in self._rows:
            self._rows[row.id] = row
            self._write(row)

    def end(self, profile_id: str, **changes: object) -> ProfileRow:
        """Enter how a profile ended, with the files that there are."""
        row = self.row(profile_id)
        _remove_halves(self.directory_of(profile_id))
        ended = row.model_copy(update={**changes, "files": self._files(profile_id)})
        self.change(ended)
        self.make_room()
        return ended

    def remove(self, profile_id: str) -> None:
        """Delete a profile. Raises NotFoundError."""
        directory = self.directory_of(profile_id)
        del self._rows[profile_id]
        shutil.rmtree(directory, ignore_errors=True)

    def make_room(self) -> None:
        """Delete the oldest profiles until all files fit; the newest stays, whatever its size."""
        used_bytes = 0
        for number, row in enumerate(self.rows()):
            used_bytes += sum(file.num_bytes for file in row.files)
            if number and used_bytes > self._max_bytes and row.state != "running":
                logger.info("profile %s is deleted: the store is full", row.id)
                self.remove(row.id)

    def _files(self, profile_id: str) -> list[ProfileFile]:
        try:
            paths = sorted(self.directory_of(profile_id).glob("*.json.gz"))
            return [_file(path) for path in paths]
        except OSError as error:
            logger.warning("the files of profile %s cannot be listed: %s", profile_id, error)
            return []

    def _write(self, row: ProfileRow) -> None:
        """Write a row to its directory; a full disk takes only the memory of it."""
        path = self._directory / row.id / ROW_FILE
        fresh = path.with_name(f".{path.name}.new")
        try:
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(row.model_dump_json())
            fresh.replace(path)
        except OSError as error:
            logger.warning("profile %s is not written down: %s", row.id, error)


def _file(path: Path) -> ProfileFile:
    kind = "merged" if path.name.endswith("-merged.json.gz") else "torch"
    return ProfileFile(name=path.name, kind=kind, num_bytes=path.stat().st_size)


def _remove_halves(directory: Path) -> None:
    """Remove what an engine that died, or a full disk, left of files that were being written."""
    try:
        for path in directory.glob(".*"):
            path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("half files stay in %s: %s", directory, error)


def _load(directory: Path) -> dict[str, ProfileRow]:
    """Read the rows of earlier runs; what does not look like one is left alone."""
    rows: dict[str, ProfileRow] = {}
    for path in sorted(directory.glob(f"*/{ROW_FILE}")):
        try:
            row = ProfileRow.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            logger.warning("%s is left alone: %s", path, error)
            continue
        if row.id != path.parent.name:
            continue
        if row.state == "running":
            row = row.model_copy(update={"state": "failed", "error": CUT_SHORT})
            _remove_halves(path.parent)
        rows[row.id] = row
    return rows
