"""`postmortem`: the last steps of an engine, dead or alive, with or without an appliance."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from appliance.cli.exits import CliError, Exit
from appliance.cli.output import Output, print_json, print_table, printable, say
from appliance.cli.profile_commands import one_engine
from appliance.cli.target import Format, KeyFile, StateDir, Url, connect, is_reachable

if TYPE_CHECKING:
    from appliance.supervisor.admin.schemas import FlightReport, FlightStep

_IDS_SHOWN = 3
_EVENTS_SHOWN = 12
_LINES_SHOWN = 12


def postmortem(  # noqa: PLR0913 (options of a command)
    engine: Annotated[
        str | None, typer.Argument(help="e0, e1, ...; needless with one engine.")
    ] = None,
    epoch: Annotated[
        int | None,
        typer.Option(min=0, help="Which of its starts; the last that crashed, if left out."),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Of the process that runs now.")] = False,
    steps: Annotated[int, typer.Option(min=1, max=4096, help="Newest steps to show.")] = 20,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """Show the last steps of an engine, dead or alive. Works without a running appliance too."""
    if not is_reachable(state_dir, url):
        report = _offline(state_dir, engine, steps, epoch)
    else:
        report = _online(engine, steps, epoch, live=live, target=(state_dir, url, key_file))
    if output is Output.JSON:
        print_json(report.model_dump(mode="json"))
    else:
        _print(report)


def _online(
    engine: str | None,
    steps: int,
    epoch: int | None,
    *,
    live: bool,
    target: tuple[Path | None, str | None, Path | None],
) -> "FlightReport":
    from appliance.cli.diagnostics_client import DiagnosticsClient

    with connect(*target) as admin:
        chosen = one_engine(admin, engine)
        if live:
            epoch = next((row.epoch for row in admin.engines() if row.id == chosen), epoch)
        return DiagnosticsClient(admin).flight(chosen, steps, epoch)


def _offline(
    state_dir: Path | None, engine: str | None, steps: int, epoch: int | None
) -> "FlightReport":
    from appliance.config.paths import client_state_dir
    from appliance.supervisor.admin.ports import NotFoundError
    from appliance.supervisor.flight_files import DIRECTORY, FlightFiles

    directory = client_state_dir(state_dir) / DIRECTORY
    files = FlightFiles(directory)
    names = files.engines()
    if engine is None and len(names) != 1:
        listed = ", ".join(names) or f"there are no recordings in {directory}"
        raise CliError(f"which engine? {listed}", Exit.USAGE)
    chosen = engine or names[0]
    try:
        return files.report(chosen, steps, epoch)
    except NotFoundError as error:
        epochs = ", ".join(str(each) for each in files.epochs(chosen))
        raise CliError(str(error), hint=f"Recorded epochs: {epochs or 'none'}.") from error


def _print(report: "FlightReport") -> None:
    from appliance.supervisor.flight_texts import last_moment

    end = "it runs" if report.alive else report.last_exit or "it ended"
    print(printable(f"{report.engine} epoch {report.epoch}, process {report.pid}: {end}"))
    moment = last_moment(report)
    print(printable(moment or "it made no step"))
    if report.steps:
        header = ("STEP", "AT", "STAGE", "TOOK", "IN", "OUT", "KV", "WAIT", "REQ", "REQUESTS")
        print()
        print_table(header, (_cells(step) for step in report.steps))
    if report.events:
        print()
        rows = [(_clock(e.at), e.kind, e.text) for e in report.events[:_EVENTS_SHOWN]]
        print_table(("AT", "EVENT", "WHAT"), rows)
    if report.log_tail:
        print()
        for line in report.log_tail[-_LINES_SHOWN:]:
            print(printable(line))
    if len(report.events) > _EVENTS_SHOWN or len(report.log_tail) > _LINES_SHOWN:
        say("-o json prints all of it")


def _cells(step: "FlightStep") -> list[str]:
    named = step.request_ids[:_IDS_SHOWN]
    more = step.requests - len(named)
    return [
        str(step.step),
        _clock(step.at),
        step.stage,
        "-" if step.took_ms is None else f"{step.took_ms:.1f} ms",
        str(step.prefill_tokens),
        str(step.decode_tokens),
        str(step.used_blocks),
        str(step.waiting),
        str(step.requests),
        " ".join(named) + (f" +{more}" if more > 0 else ""),
    ]


def _clock(at: datetime) -> str:
    return f"{at.astimezone():%H:%M:%S.%f}"[:-3]
