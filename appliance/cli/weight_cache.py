"""`quarterdeck models cache`: what engines keep of packed weights, and how it goes."""

from pathlib import Path

from appliance.cli.exits import CliError
from appliance.cli.output import Output, print_json, print_table, say, size
from appliance.config.paths import weight_cache_dir
from appliance.config.settings import Settings
from appliance.model_store.packed_weights import PackedWeights, clear, entries


def show_weight_cache(settings: Settings, *, clear_it: bool, output: Output) -> None:
    """Print the entries; with `clear_it` they are removed first, and what that freed is told.

    Raises:
        CliError: one cannot be removed.
    """
    directory = weight_cache_dir(settings.weight_cache)
    if directory is None:
        say("the weight cache is off")
        found: list[PackedWeights] = []
    else:
        if clear_it:
            _clear(directory)
        found = entries(directory)
    if output is Output.JSON:
        print_json(_document(directory, found, settings.weight_cache_bytes))
    elif directory is not None:
        _print(directory, found, settings.weight_cache_bytes)


def _clear(directory: Path) -> None:
    try:
        freed_bytes = clear(directory)
    except OSError as error:
        raise CliError(f"{directory} cannot be cleared: {error.strerror}") from error
    say(f"freed {size(freed_bytes)}")


def _document(
    directory: Path | None, found: list[PackedWeights], limit_bytes: int
) -> dict[str, object]:
    return {
        "directory": None if directory is None else str(directory),
        "limit_bytes": limit_bytes,
        "bytes": sum(entry.num_bytes for entry in found),
        "items": [
            {"key": entry.key, "bytes": entry.num_bytes, "last_used": entry.last_used.isoformat()}
            for entry in found
        ],
    }


def _print(directory: Path, found: list[PackedWeights], limit_bytes: int) -> None:
    rows = (
        [entry.key, size(entry.num_bytes), f"{entry.last_used.astimezone():%Y-%m-%d %H:%M}"]
        for entry in found
    )
    print_table(("WEIGHTS", "SIZE", "LAST USED"), rows)
    whole = size(sum(entry.num_bytes for entry in found))
    say(f"{directory}: {whole} of at most {size(limit_bytes)}")
