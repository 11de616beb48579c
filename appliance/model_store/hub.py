"""Pulls models from a hub by their ids, at the commit that a revision stands for."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from appliance.model_store.hub_store import (
    HubModel,
    HubRecord,
    HubReference,
    find_hub_model,
    folder_of,
    install,
    note_revision,
    partial_folder,
)
from appliance.model_store.packs import ModelStoreError
from appliance.model_store.progress import Progress
from appliance.model_store.store import store_lock

_TERMINATE_S = 5.0
_LAST_LINES = 3
_INSTALL = "pip install 'huggingface-hub>=0.34'"


def pull_hub(reference: HubReference, model_dir: Path, progress: Progress) -> HubModel:
    """Bring the commit that the revision stands for into the model directory.

    The hub is asked; a commit that is here already is not downloaded again. An interrupted
    download is continued. `find_hub_model` finds it later without a network.

    Raises:
        ModelStoreError: the extra is not installed, no network, no such model or revision, no
            access, no safetensors, a model that cannot run, no room.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ModelStoreError(
            f"{reference.repository} is a hub id, and hub models need one more package: {_INSTALL}"
        )
    with store_lock(model_dir, lambda: progress("wait", 0, 0)):
        try:
            return _pull_alone(reference, model_dir, progress)
        except OSError as error:
            raise ModelStoreError(
                f"cannot pull {reference.repository} into {model_dir}: {error}"
            ) from error


def _pull_alone(reference: HubReference, model_dir: Path, progress: Progress) -> HubModel:
    folder_of(reference.repository, model_dir).mkdir(parents=True, exist_ok=True)
    progress("look", 0, 0)
    found = _Child(reference, model_dir).run(progress)
    commit = str(found["commit"])
    if found.get("is_here"):
        note_revision(reference, commit, model_dir)
        model = find_hub_model(reference, model_dir)
        assert model is not None
        return model
    partial = partial_folder(reference.repository, commit, model_dir)
    files = {name: (partial / name).stat().st_size for name in found["files"]}
    record = HubRecord(repository=reference.repository, commit=commit, files=files)
    return install(record, reference, partial, model_dir)


class _Child:
    """The process that downloads, see `hub_fetch`."""

    def __init__(self, reference: HubReference, model_dir: Path) -> None:
        self._reference = reference
        self._model_dir = model_dir

    def run(self, progress: Progress) -> dict[str, Any]:
        """Download and return what it said of the commit."""
        with tempfile.TemporaryFile("w+") as log:
            # A fixed program; repository and revision were checked and cannot look like options.
            process = subprocess.Popen(  # noqa: S603
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(),
                text=True,
            )
            try:
                assert process.stdout is not None
                said = _listen(process.stdout, progress)
                code = process.wait()
            finally:
                _stop(process)
            log.seek(0)
            if code != 0 or "commit" not in said:
                raise ModelStoreError(said.get("error") or self._explain(log.read()))
        return said

    def _command(self) -> list[str]:
        module = "appliance.model_store.hub_fetch"
        asked = (self._reference.repository, self._reference.revision, str(self._model_dir))
        return [sys.executable, "-m", module, *asked]

    def _explain(self, log: str) -> str:
        last = "; ".join(log.strip().splitlines()[-_LAST_LINES:]) or "it said nothing"
        return f"the download of {self._reference.repository} failed: {last}"


def _environment() -> dict[str, str]:
    """Return the user's own (endpoint, token, proxy), without our settings: some are keys."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("QUARTERDECK_")
    }
    return kept | {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def _listen(lines: Iterable[str], progress: Progress) -> dict[str, Any]:
    """Follow what the child says until it ends; return all of it but the progress."""
    said: dict[str, Any] = {}
    for line in lines:
        try:
            message = json.loads(line)
        except ValueError:
            continue  # a library's own words
        stored_bytes = message.pop("stored_bytes", None)
        said |= message
        if stored_bytes is not None:
            progress("download", stored_bytes, said["total_bytes"])
    return said


def _stop(process: subprocess.Popen[str]) -> None:
    if process.stdout is not None:
        process.stdout.close()
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_TERMINATE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
