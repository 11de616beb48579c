"""Writes the dashboards into ops/grafana/json: `python -m ops.grafana.build [--check]`."""

import argparse
import sys
from pathlib import Path

from ops.grafana.board import Board, render
from ops.grafana.dashboards import (
    engine_step,
    kv_cache,
    lora,
    overview,
    processes,
    request_path,
    slo,
)

JSON_DIR = Path(__file__).parent / "json"
BOARDS: tuple[Board, ...] = (
    overview.BOARD,
    request_path.BOARD,
    engine_step.BOARD,
    kv_cache.BOARD,
    lora.BOARD,
    slo.BOARD,
    processes.BOARD,
)


def documents() -> dict[str, str]:
    """Return the dashboards' JSON by file name."""
    return {f"{board.uid}.json": render(board) for board in BOARDS}


def stale(directory: Path = JSON_DIR) -> list[str]:
    """Return the names of files that are not what would be written now, or not ours."""
    made = documents()
    found = {path.name: path.read_text() for path in directory.glob("*.json")}
    return sorted(name for name in made.keys() | found.keys() if made.get(name) != found.get(name))


def main(arguments: list[str] | None = None) -> int:
    """Write what changed, or with `--check` say what would."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if stale")
    options = parser.parse_args(arguments)
    changed = stale()
    for name in changed:
        sys.stdout.write(f"{name}\n")
    if options.check:
        return 1 if changed else 0
    JSON_DIR.mkdir(exist_ok=True)
    made = documents()
    for name in changed:
        path = JSON_DIR / name
        if name in made:
            path.write_text(made[name])
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
