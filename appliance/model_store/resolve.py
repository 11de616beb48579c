"""Turns what a user calls a model into the path of its files."""

from dataclasses import dataclass
from pathlib import Path

from appliance.model_store.packs import PACKS, ModelStoreError
from appliance.model_store.store import file_of, find_pulled


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """The files of a model, and the name that clients call it by unless one is configured."""

    path: Path
    name: str


def resolve(model: str, model_dir: Path) -> ResolvedModel:
    """Find a model: the name of a pack, a Hugging Face directory, or a `.gguf` file.

    A pack wins over a directory of the same name; `./NAME` means the directory. Nothing is
    downloaded here.

    Raises:
        ModelStoreError: it is none of these, or a pack that was not pulled.
    """
    if model in PACKS:
        return _resolve_pack(model, model_dir)
    path = Path(model).expanduser()
    if model and path.is_dir():
        return _resolve_directory(path.absolute())
    if path.is_file() and path.suffix == ".gguf":
        return ResolvedModel(path.absolute(), path.stem)
    raise ModelStoreError(_explain(model, path))


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


def _explain(model: str, path: Path) -> str:
    accepted = (
        f"give the name of a model pack ({', '.join(PACKS)}), a directory in Hugging Face layout, "
        "or a .gguf file"
    )
    if path.is_file():
        return f"{model} is not a .gguf file; {accepted}"
    if model.count("/") == 1 and not model.startswith((".", "/", "~")):
        return f"{model!r} is no file or directory here, and hub ids come later; {accepted}"
    return f"there is no model {model!r}; {accepted}. Hub ids come later."
