"""Which files of a hub repository a model needs: safetensors and text, never pickles."""

import json
from collections.abc import Collection
from pathlib import Path

from appliance.model_store.packs import ModelStoreError
from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.model_config import config_from_hugging_face

INDEX_NAME = "model.safetensors.index.json"
_WEIGHTS = ".safetensors"
_TEXT_SUFFIXES = (".json", ".jinja", ".model", ".txt")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".msgpack", ".h5")
_NOT_NEEDED = ("training_args", "trainer_state", "optimizer", "scheduler", "adapter_")


def text_files(names: Collection[str], repository: str) -> list[str]:
    """Return the small files: configuration, tokenizer, template, index of the weights.

    Raises:
        ModelStoreError: the repository holds no model in Hugging Face layout with safetensors.
    """
    top = [name for name in names if "/" not in name]
    weights = [name for name in top if name.endswith(_WEIGHTS)]
    if not weights:
        raise ModelStoreError(f"{repository} {_without_safetensors(names)}")
    if "config.json" not in top:
        raise ModelStoreError(f"{repository} has no config.json, so it is no model of its own")
    return sorted(
        name for name in top if name.endswith(_TEXT_SUFFIXES) and not name.startswith(_NOT_NEEDED)
    )


def weight_files(names: Collection[str], folder: Path) -> list[str]:
    """Return the safetensors of the model; the same weights may lie there twice, merged otherwise.

    Args:
        names: All files of the repository.
        folder: Where its small files are.

    Raises:
        ModelStoreError: the index cannot be read, or names files that are not there.
    """
    if INDEX_NAME in names:
        return _indexed(names, folder / INDEX_NAME)
    if "model.safetensors" in names:
        return ["model.safetensors"]
    return sorted(name for name in names if "/" not in name and name.endswith(_WEIGHTS))


def check_can_run(folder: Path, repository: str) -> None:
    """Refuse a model that no engine could run, before its weights are downloaded.

    Raises:
        ModelStoreError: says which can.
    """
    try:
        fields = json.loads((folder / "config.json").read_bytes())
        config_from_hugging_face(fields if isinstance(fields, dict) else {})
    except (CheckpointError, ValueError, RecursionError) as error:
        raise ModelStoreError(f"{repository} cannot be run: {error}") from error


def _indexed(names: Collection[str], index: Path) -> list[str]:
    try:
        shards = {str(name) for name in json.loads(index.read_bytes())["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelStoreError(f"{index.name} is corrupt: {error}") from error
    if missing := shards - {name for name in names if "/" not in name}:
        raise ModelStoreError(f"{index.name} names files that are not there: {sorted(missing)}")
    return sorted(shards)


def _without_safetensors(names: Collection[str]) -> str:
    if any(name.endswith(".gguf") for name in names):
        return (
            "has GGUF files, which are not pulled by hub id: download the one that you want and "
            "give its path"
        )
    if any(name.endswith(_PICKLES) for name in names):
        return (
            "has its weights only in a format that can run code when it is read; only "
            "*.safetensors are downloaded: look for a converted copy of the model"
        )
    return "has no *.safetensors file at its top"
