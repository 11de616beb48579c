"""Downloads a hub model; the child process that `hub` starts, so that it can be stopped.

Speaks JSON lines on stdout: `{"commit", "is_here"}`, then, if it is not, `{"files", "total_bytes"}`
and `{"stored_bytes"}` now and then; `{"error"}` where it fails.

    python -m appliance.model_store.hub_fetch ORG/NAME REVISION FOLDER
"""

import errno
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from appliance.model_store.hub_files import check_can_run, text_files, weight_files
from appliance.model_store.hub_store import HubReference, find_hub_model, partial_folder
from appliance.model_store.packs import ModelStoreError

_UNREACHABLE = (OSError, httpx.HTTPError)
"""`requests` errors are `OSError`s; later releases of the hub's library use httpx."""
_TRIES_WITHOUT_PROGRESS = 3
_RETRY_S = 0.5
_REPORT_EVERY_S = 0.2
_CHUNK_BYTES = 1 << 20
"""Written at a time: a broken connection loses no more. The library's own 10 MiB never get over a
line that breaks every few seconds."""


class _Download:
    """One commit of one repository on its way into a folder."""

    def __init__(self, api: HfApi, reference: HubReference, model_dir: Path) -> None:
        self._api = api
        info = api.model_info(
            reference.repository, revision=reference.revision, files_metadata=True
        )
        if info.sha is None:
            raise ModelStoreError(f"{api.endpoint} names no commit of {reference.repository}")
        self.repository = reference.repository
        self.commit = info.sha
        self.sizes = {each.rfilename: each.size or 0 for each in info.siblings or []}
        self._model_dir = model_dir
        self.folder = partial_folder(reference.repository, info.sha, model_dir)

    def run(self) -> None:
        """Fetch everything that is not here yet."""
        is_here = find_hub_model(HubReference(self.repository, self.commit), self._model_dir)
        _say({"commit": self.commit, "is_here": is_here is not None})
        if is_here is None:
            self._fetch_all()

    def _fetch_all(self) -> None:
        texts = text_files(self.sizes, self.repository)
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in texts:
            self._fetch(name)
        check_can_run(self.folder, self.repository)
        weights = weight_files(self.sizes, self.folder)
        total_bytes = sum(self.sizes[name] for name in (*texts, *weights))
        _say({"files": [*texts, *weights], "total_bytes": total_bytes})
        self._check_room(total_bytes)
        with _reports(self.folder, total_bytes):
            for name in weights:
                self._fetch(name)
        shutil.rmtree(self.folder / ".cache", ignore_errors=True)

    def _fetch(self, name: str) -> None:
        """Fetch a file; a connection that breaks is taken up where it broke."""
        tries = _TRIES_WITHOUT_PROGRESS
        had_bytes = stored_bytes(self.folder)
        while not (self.folder / name).exists():  # it gets its name when it is whole
            try:
                self._api.hf_hub_download(
                    self.repository, name, revision=self.commit, local_dir=self.folder
                )
            except _UNREACHABLE as error:
                have_bytes = stored_bytes(self.folder)
                tries = _TRIES_WITHOUT_PROGRESS if have_bytes > had_bytes else tries - 1
                had_bytes = have_bytes
                if tries == 0 or _is_final(error):
                    raise
                time.sleep(_RETRY_S)

    def _check_room(self, total_bytes: int) -> None:
        missing_bytes = total_bytes - stored_bytes(self.folder)
        free_bytes = shutil.disk_usage(self.folder).free
        if missing_bytes > free_bytes:
            raise ModelStoreError(
                f"pulling {self.repository} needs {missing_bytes >> 20} MiB more; "
                f"{self.folder.parent} has {free_bytes >> 20} MiB free"
            )


@contextmanager
def _reports(folder: Path, total_bytes: int) -> Generator[None]:
    """Tell how much is here while files are fetched: the library's own bar draws on a terminal."""
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(_REPORT_EVERY_S):
            try:
                _say({"stored_bytes": min(total_bytes, stored_bytes(folder))})
            except OSError:
                os._exit(1)  # whoever started us is gone

    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield
    finally:
        ended.set()
        reporter.join()


def stored_bytes(folder: Path) -> int:
    """Return how much of a download is here, unfinished files included."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue  # it was just moved
    return total


def main(arguments: Sequence[str]) -> int:
    """Run; return the exit code."""
    repository, revision, model_dir = arguments
    constants.DOWNLOAD_CHUNK_SIZE = _CHUNK_BYTES
    reference = HubReference(repository, revision)
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    try:
        _Download(api, reference, Path(model_dir)).run()
    except ModelStoreError as error:
        _say({"error": str(error)})
        return 1
    except _UNREACHABLE as error:
        _say({"error": _explain(error, reference, api.endpoint)})
        return 1
    return 0


def _is_final(error: Exception) -> bool:
    """Return whether trying again would not help."""
    if isinstance(error, HfHubHTTPError) and not isinstance(error, LocalEntryNotFoundError):
        return True
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES)


def _explain(error: Exception, reference: HubReference, endpoint: str) -> str:
    name = reference.repository
    if isinstance(error, HfHubHTTPError) and not isinstance(error, LocalEntryNotFoundError):
        return _refused(error, reference, endpoint)
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: {name} was not pulled; what is here is kept and continued"
    if number in (errno.EACCES, errno.EROFS):
        return f"cannot write {name}: {error}"
    return (
        f"{endpoint} cannot be reached, or the connection breaks again and again, so {name} was "
        "not pulled: check the network and HF_ENDPOINT, then repeat; what is here is kept and "
        "continued. A directory or a .gguf file needs no network."
    )


def _refused(error: HfHubHTTPError, reference: HubReference, endpoint: str) -> str:
    name = reference.repository
    match error:
        case GatedRepoError():
            return (
                f"{name} is gated: accept its terms at {endpoint}/{name}, then set HF_TOKEN to a "
                "token of that account"
            )
        case RepositoryNotFoundError():
            return (
                f"{endpoint} has no model {name}, or it is private: check the name, or set HF_TOKEN"
            )
        case RevisionNotFoundError():
            return f"{name} has no revision {reference.revision!r}"
        case _:
            first = (str(error).strip().splitlines() or ["an error"])[0]
            return f"{endpoint} answers for {name}: {first}"


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
