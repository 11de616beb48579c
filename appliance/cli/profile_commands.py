"""`profile`: what an engine's steps consist of, and where its threads are."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from appliance.cli.exits import CliError, Exit
from appliance.cli.output import Output, print_json, print_table, printable, say, size
from appliance.cli.target import Format, KeyFile, StateDir, Url, connect

if TYPE_CHECKING:
    from appliance.cli.admin_client import AdminClient
    from appliance.supervisor.admin.schemas import Operation, ProfileRow

_HINT = "open the merged file at https://ui.perfetto.dev (it stays in your browser)"
_MARGIN_S = 330.0
"""Beyond the recording: the engine may take 300 s to write."""
_START = "start"


class StartByDefault(TyperGroup):
    """A group whose first word may be left out: `profile e0` is `profile start e0`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the word in front of what is no command of the group."""
        is_meant = bool(args) and args[0] not in {*self.commands, "-h", "--help"}
        return super().parse_args(ctx, [_START, *args] if is_meant else args)


profile_app = typer.Typer(
    cls=StartByDefault,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Profile an engine: `profile e0 --steps 20`, `profile e0 --stacks`, `profile list`.",
)

Engine = Annotated[str | None, typer.Argument(help="e0, e1, ...; needless with one engine.")]
ProfileId = Annotated[str, typer.Argument(help="As `profile list` prints it.")]
Out = Annotated[Path, typer.Option(help="Directory for the files; made if need be.")]


@profile_app.command(_START)
def start(  # noqa: PLR0913 (options of a command)
    engine: Engine = None,
    steps: Annotated[
        int, typer.Option(min=1, max=200, help="Steps; 50 at most with stacks or memory.")
    ] = 20,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=600.0, help="Longest wait for these steps.")
    ] = 60.0,
    out: Out = Path(),
    with_stacks: Annotated[
        bool, typer.Option("--with-stacks", help="Record Python stacks of each operation.")
    ] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Record what is allocated and freed.")
    ] = False,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="No profile: print where every thread is now.")
    ] = False,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """Record the next steps of an engine with torch's profiler and download the files."""
    with connect(state_dir, url, key_file) as admin:
        chosen = one_engine(admin, engine)
        if stacks:
            _print_stacks(admin, chosen, output)
            return
        body = {
            "engine": chosen,
            "steps": steps,
            "duration_s": seconds,
            "with_stacks": with_stacks,
            "with_memory": memory,
        }
        _record(admin, body, out, output)


@profile_app.command("list")
def list_profiles(
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """List the profiles, newest first."""
    from appliance.cli.diagnostics_client import DiagnosticsClient

    with connect(state_dir, url, key_file) as admin:
        rows = DiagnosticsClient(admin).profiles()
    if output is Output.JSON:
        print_json([row.model_dump(mode="json") for row in rows])
        return
    header = ("PROFILE", "ENGINE", "STATE", "WHEN", "STEPS", "SIZE", "BY")
    print_table(header, (_cells(row) for row in rows))
    for row in rows:
        if row.error:
            say(printable(f"{row.id}: {row.error}"))
    if not rows:
        say("no profiles; take one with `quarterdeck profile e0`")


@profile_app.command("get")
def get(
    profile_id: ProfileId,
    out: Out = Path(),
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """Download the files of a profile."""
    from appliance.cli.diagnostics_client import DiagnosticsClient

    with connect(state_dir, url, key_file) as admin:
        row = DiagnosticsClient(admin).profile(profile_id)
        _download(admin, row, out, output)


@profile_app.command("stop")
def stop(
    profile_id: ProfileId,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """End a running profile; what it has so far is kept."""
    from appliance.cli.diagnostics_client import DiagnosticsClient

    with connect(state_dir, url, key_file) as admin:
        begun = DiagnosticsClient(admin).stop_profile(profile_id)
        operation = admin.finish(begun, _MARGIN_S, _watch)
    _print_operation(operation, f"{profile_id}: ended", output)


@profile_app.command("delete")
def delete(
    profile_id: ProfileId,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """Delete a profile with its files on the server."""
    from appliance.cli.diagnostics_client import DiagnosticsClient

    with connect(state_dir, url, key_file) as admin:
        row = DiagnosticsClient(admin).delete_profile(profile_id)
    if output is Output.JSON:
        print_json(row.model_dump(mode="json"))
    else:
        print(printable(f"{row.id}: deleted"))


def one_engine(admin: "AdminClient", engine: str | None) -> str:
    """Return the engine that is meant.

    Raises:
        CliError: 2, none is named and there are several.
    """
    if engine is not None:
        return engine
    names = [row.id for row in admin.engines()]
    if len(names) != 1:
        raise CliError(f"which engine? {', '.join(names)}", Exit.USAGE)
    return names[0]


def _record(admin: "AdminClient", body: dict[str, Any], out: Path, output: Output) -> None:
    from appliance.cli.diagnostics_client import DiagnosticsClient

    _make_directory(out)
    client = DiagnosticsClient(admin)
    begun = client.start_profile(body)
    operation = admin.finish(begun, body["duration_s"] + _MARGIN_S, _watch)
    profile_id = str((operation.result or {}).get("profile_id"))
    row = client.profile(profile_id)
    _download(admin, row, out, output)
    if row.first_step is None:
        say(f"{row.engine} made no step in that time: it had nothing to do")


def _download(admin: "AdminClient", row: "ProfileRow", out: Path, output: Output) -> None:
    from appliance.cli.diagnostics_client import DiagnosticsClient

    _make_directory(out)
    paths = [out / file.name for file in row.files]
    for path in paths:
        DiagnosticsClient(admin).download(row.id, path.name, path)
    if output is Output.JSON:
        print_json({**row.model_dump(mode="json"), "paths": [str(path) for path in paths]})
        return
    for path in paths:
        print(path)
    say(_HINT if paths else f"{row.id} has no files")


def _make_directory(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CliError(f"--out {out}: {error.strerror}", Exit.USAGE) from error


def _print_stacks(admin: "AdminClient", engine: str, output: Output) -> None:
    from appliance.cli.diagnostics_client import DiagnosticsClient

    dump = DiagnosticsClient(admin).stacks(engine)
    if output is Output.JSON:
        print_json(dump.model_dump(mode="json"))
        return
    for line in dump.text.splitlines():
        print(printable(line))
    say(f"by {dump.tool}, process {dump.pid}")


def _print_operation(operation: "Operation", text: str, output: Output) -> None:
    if output is Output.JSON:
        print_json(operation.model_dump(mode="json"))
    else:
        print(printable(text))


def _watch(operation: "Operation") -> None:
    if sys.stderr.isatty():
        say(printable(f"{operation.target}: {operation.phase or operation.kind}"))


def _cells(row: "ProfileRow") -> list[str]:
    steps = "-" if row.first_step is None else f"{row.first_step}-{row.last_step}"
    return [
        row.id,
        row.engine,
        row.state,
        f"{row.created_at.astimezone():%Y-%m-%d %H:%M:%S}",
        steps,
        size(sum(file.num_bytes for file in row.files)),
        row.actor,
    ]
