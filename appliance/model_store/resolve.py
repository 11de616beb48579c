"""Turns what a user calls a model into the path of its files."""

import sys
from dataclasses import dataclass
from pathlib import Path

from appliance.model_store.hub import pull_hub
from appliance.model_store.hub_store import HubReference, find_hub_model, hub_reference
from appliance.model_store.packs import PACKS, ModelStoreError
from appliance.model_store.progress import Progress, ProgressBar
from appliance.model_store.store import file_of, find_pulled


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """The files of a model, and the name that clients call it by unless one is configured."""

    path: Path
    name: str


def resolve(
    model: str,
    model_dir: Path,
    *,
    revision: str | None = None,
    progress: Progress | None = None,
) -> ResolvedModel:
    """Find a model: the name of a pack, a Hugging Face directory, a `.gguf` file, or a hub id.

    A pack wins over a directory of the same name, a directory over a hub id; `./NAME` means the
    directory. A hub model that is not here is downloaded; one that is here is taken as it is,
    without a network, until it is pulled again.

    Args:
        model: What the user wrote; `org/name@revision` for a certain revision of a hub model.
        model_dir: Where pulled models are.
        revision: Of a hub model that names none.
        progress: Told how far a download is; None: it is drawn on stderr.

    Raises:
        ModelStoreError: it is none of these, a pack that was not pulled, or cannot be downloaded.
    """
    if model in PACKS:
        return _resolve_pack(model, model_dir)
    path = Path(model).expanduser()
    if model and path.is_dir():
        return _resolve_directory(path.absolute())
    if path.is_file():
        return _resolve_file(model, path)
    reference = hub_reference(model, revision)
    if reference is not None:
        return _resolve_hub(reference, model_dir, progress)
    raise ModelStoreError(f"there is no model {model!r}; {_accepted()}")


def _resolve_pack(name: str, model_dir: Path) -> ResolvedModel:
    pack = PACKS[name]
    if find_pulled(pack, model_dir) is None:
        raise ModelStoreError(
            f"model pack {name!r} is not in {model_dir}: run `quarterdeck models pull {name}`"
        )
    return ResolvedModel(file_of(pack, model_dir), name)


def _resolve_directory(path: Path) -> ResolvedModel:
    if (path / "config.json").is_file():
        return ResolvedModel(path, path.name)
    files = sorted(file.name for file in path.glob("*.gguf"))
    hint = f"; name one of its files: {', '.join(files)}" if files else ""
    raise ModelStoreError(f"{path} has no config.json, so it is no Hugging Face directory{hint}")


def _resolve_file(model: str, path: Path) -> ResolvedModel:
    if path.suffix != ".gguf":
        raise ModelStoreError(f"{model} is not a .gguf file; {_accepted()}")
    return ResolvedModel(path.absolute(), path.stem)


def _resolve_hub(
    reference: HubReference, model_dir: Path, progress: Progress | None
) -> ResolvedModel:
    model = find_hub_model(reference, model_dir)
    if model is None:
        bar = ProgressBar(reference.repository, sys.stderr)
        try:
            model = pull_hub(reference, model_dir, progress or bar)
        finally:
            bar.close()
    return ResolvedModel(model.path, reference.repository)


def _accepted() -> str:
    return (
        f"give the name of a model pack ({', '.join(PACKS)}), a directory in Hugging Face layout, "
        "a .gguf file, or a hub id such as Qwen/Qwen3-0.6B"
    )
