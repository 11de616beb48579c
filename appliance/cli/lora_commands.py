"""`lora load|unload|list|pin|unpin`: LoRA adapters of the running engines."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from appliance.cli.output import Output, print_json, print_table, printable, say, size
from appliance.cli.target import Format, KeyFile, StateDir, Url, connect

if TYPE_CHECKING:
    from appliance.cli.admin_client import AdminClient
    from appliance.supervisor.admin.schemas import AdapterRow, Operation

_HASH_DIGITS = 12
_LOAD_TIMEOUT_S = 180.0
_TIMEOUT_S = 60.0

lora_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="LoRA adapters: load, unload, list, pin. Requests name one as their model.",
)

Name = Annotated[str, typer.Argument(help="Name of the adapter: requests give it as their model.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait for the end.")]
Wait = Annotated[bool, typer.Option(help="Wait for the end.")]


@lora_app.command("load")
def load(  # noqa: PLR0913 (options of a command)
    name: Name,
    path: Annotated[Path, typer.Argument(help="Its directory, below an --adapter-root.")],
    pin: Annotated[
        bool | None, typer.Option("--pin/--no-pin", help="Keep it in its slot, or do not.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Served model that it changes; default: the first.")
    ] = None,
    timeout: Timeout = _LOAD_TIMEOUT_S,
    wait: Wait = True,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """Load an adapter on all engines, or on none; other content under its name is replaced."""
    with connect(state_dir, url, key_file) as admin:
        begun = admin.load_adapter(name, str(path.absolute()), pinned=pin, model=model)
        _follow(admin, begun, timeout if wait else None, output)


@lora_app.command("unload")
def unload(  # noqa: PLR0913 (options of a command)
    name: Name,
    timeout: Timeout = _TIMEOUT_S,
    wait: Wait = True,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """Take an adapter away; requests that run with it go on to their end."""
    with connect(state_dir, url, key_file) as admin:
        _follow(admin, admin.unload_adapter(name), timeout if wait else None, output)


@lora_app.command("pin")
def pin(  # noqa: PLR0913 (options of a command)
    name: Name,
    timeout: Timeout = _TIMEOUT_S,
    wait: Wait = True,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """Keep an adapter in its slot."""
    with connect(state_dir, url, key_file) as admin:
        _follow(admin, admin.pin_adapter(name, "pin"), timeout if wait else None, output)


@lora_app.command("unpin")
def unpin(  # noqa: PLR0913 (options of a command)
    name: Name,
    timeout: Timeout = _TIMEOUT_S,
    wait: Wait = True,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """Let an adapter make room for others."""
    with connect(state_dir, url, key_file) as admin:
        _follow(admin, admin.pin_adapter(name, "unpin"), timeout if wait else None, output)


@lora_app.command("list")
def list_adapters(
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """List all adapters and where they are."""
    with connect(state_dir, url, key_file) as admin:
        rows = admin.adapters()
    if output is Output.JSON:
        print_json([row.model_dump(mode="json") for row in rows])
        return
    header = ("ADAPTER", "STATE", "MODEL", "RANK", "SIZE", "PIN", "RUN", "ENGINES", "CONTENT")
    print_table(header, (_cells(row) for row in rows))
    for row in rows:
        for each in row.engines:
            if each.error:
                say(printable(f"{row.name}: not on {each.engine}: {each.error}"))


def _follow(
    admin: "AdminClient", begun: "Operation", timeout_s: float | None, output: Output
) -> None:
    operation = begun
    if timeout_s is not None:
        operation = admin.finish(begun, timeout_s, lambda _: None)
    if output is Output.JSON:
        print_json(operation.model_dump(mode="json"))
    else:
        print(printable(_sentence(operation)))


def _sentence(operation: "Operation") -> str:
    name, result = operation.target, operation.result or {}
    if operation.state != "done":
        return f"{name}: {operation.kind} begun ({operation.id})"
    match operation.kind:
        case "lora.load":
            where = ", ".join(result.get("engines", ()))
            return f"{name}: loaded on {where}, rank {result.get('rank')}"
        case "lora.unload":
            running = result.get("running_requests", 0)
            return f"{name}: unloaded" + (f"; {running} requests still use it" if running else "")
        case kind:
            return f"{name}: {kind.removeprefix('lora.')}ned"


def _cells(row: "AdapterRow") -> list[str]:
    return [
        row.name,
        row.state,
        row.model,
        "-" if row.rank is None else str(row.rank),
        size(row.num_bytes),
        "yes" if row.pinned else "-",
        str(row.running_requests),
        ",".join(each.engine for each in row.engines if each.state == "loaded") or "-",
        row.content_hash[:_HASH_DIGITS] or "-",
    ]
