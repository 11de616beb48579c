"""`config show`: the settings that `serve` would take here, and where each comes from."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from appliance.cli.output import Output, print_json, print_table, say
from appliance.cli.target import Format

config_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The configuration.")


@config_app.callback()
def config() -> None:
    """The configuration."""


@config_app.command("show")
def show(
    sources: Annotated[
        bool, typer.Option("--sources", help="Also say where each value comes from.")
    ] = False,
    config: Annotated[Path | None, typer.Option(help="Configuration file.")] = None,
    output: Format = Output.TABLE,
) -> None:
    """Print every setting. Keys stay hidden."""
    from appliance.config.sources import load_from_process

    loaded = load_from_process({"config": config})
    shown = loaded.shown()
    if output is Output.JSON:
        print_json(
            {key: {"value": value, "source": loaded.origins[key]} for key, value in shown.items()}
            if sources
            else shown
        )
    elif sources:
        rows = ([key, text, loaded.origins[key]] for key, text in _lines(shown))
        print_table(("SETTING", "VALUE", "SOURCE"), rows)
    else:
        print_table(("SETTING", "VALUE"), _lines(shown))
    for warning in loaded.warnings:
        say(f"warning: {warning}")


def _lines(shown: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a line for each setting, and one for each engine with what its table sets."""
    for key, value in shown.items():
        if key == "engines" and value:
            for engine in value:
                given = {name: setting for name, setting in engine.items() if setting}
                yield key, _text(given)
        else:
            yield key, _text(value)


def _text(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value)
