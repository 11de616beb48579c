"""`logs`: what the processes of the appliance wrote, also of one that does not run any more."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from appliance.cli.exits import CliError, Exit
from appliance.cli.output import Output, print_json, printable, say
from appliance.cli.target import Format, KeyFile, StateDir, Url, connect, is_reachable

if TYPE_CHECKING:
    from appliance.cli.admin_client import AdminClient
    from appliance.supervisor.admin.schemas import LogLine

_POLL_S = 0.5
_BATCH = 1000


class Level(StrEnum):
    """How urgent a line is."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class _Asked:
    """Which lines are wanted."""

    process: str | None
    level: str | None
    contains: str | None

    def of(self, admin: "AdminClient", limit: int, after: int | None = None) -> "list[LogLine]":
        return admin.logs(
            process=self.process,
            level=self.level,
            contains=self.contains,
            after=after,
            limit=limit,
        )


def logs(  # noqa: PLR0913 (options of a command)
    process: Annotated[
        str | None, typer.Argument(help="e0, gateway-0, supervisor; all, if left out.")
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as lines come.")] = False,
    level: Annotated[Level | None, typer.Option(help="This level and worse.")] = None,
    grep: Annotated[
        str | None, typer.Option(help="Only lines with this text, in any case of letters.")
    ] = None,
    lines: Annotated[int, typer.Option("-n", "--lines", min=1, max=5000)] = 100,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """Show what the processes wrote, the newest lines last.

    Without a running appliance, the log file of the last one is read.
    """
    wanted = None if level is None else level.value
    if not is_reachable(state_dir, url):
        if follow:
            raise CliError("no appliance is running: there is nothing to follow", Exit.NO_ACCESS)
        _print(_from_file(state_dir, process, wanted, grep, lines), output, follow=False)
        return
    asked = _Asked(process, wanted, grep)
    with connect(state_dir, url, key_file) as admin:
        first = asked.of(admin, limit=lines)
        _print(first, output, follow=follow)
        if not follow:
            return
    try:
        _follow((state_dir, url, key_file), asked, first[-1].id if first else 0, output)
    except KeyboardInterrupt:
        return


def _follow(
    target: tuple[Path | None, str | None, Path | None],
    asked: "_Asked",
    last_id: int,
    output: Output,
) -> None:
    """Print lines as they come; an appliance that restarts is waited for."""
    was_away = False
    while True:
        try:
            with connect(*target) as admin:
                if was_away:
                    say("the appliance is back")
                    last_id = _begin_again(admin, last_id)
                    was_away = False
                while True:
                    last_id = _go_on(admin, asked, last_id, output)
        except CliError as error:
            if error.__cause__ is None:  # it answered: with this key, there is nothing to wait for
                raise
            if not was_away:
                say(f"{error}: waiting for it")
            was_away = True
            time.sleep(_POLL_S)


def _go_on(admin: "AdminClient", asked: "_Asked", last_id: int, output: Output) -> int:
    """Print what came after a line; return the last one's id."""
    found = asked.of(admin, after=last_id, limit=_BATCH)
    _print(found, output, follow=True)
    if len(found) < _BATCH:
        time.sleep(_POLL_S)
    return found[-1].id if found else last_id


def _begin_again(admin: "AdminClient", last_id: int) -> int:
    """Return after which line to go on: ids go on too, unless the log file was taken away."""
    newest = admin.logs(limit=1)
    return last_id if newest and newest[-1].id >= last_id else 0


def _from_file(
    state_dir: Path | None, process: str | None, level: str | None, contains: str | None, limit: int
) -> "list[LogLine]":
    from appliance.config.paths import client_state_dir
    from appliance.supervisor.log_book import kept_lines
    from appliance.supervisor.log_file import LOG_DIRECTORY

    directory = client_state_dir(state_dir) / LOG_DIRECTORY
    try:
        found = kept_lines(
            directory, process=process, min_level=level, limit=limit, contains=contains
        )
    except OSError as error:
        hint = "Start one with `quarterdeck serve`, or name another with --state-dir."
        message = f"no appliance is running, and there is no log in {directory}: {error.strerror}"
        raise CliError(message, Exit.NO_ACCESS, hint) from error
    say(f"no appliance is running; these are the last lines in {directory}")
    return found


def _print(lines: "Sequence[LogLine]", output: Output, *, follow: bool) -> None:
    if not lines and not follow:
        say("no such lines")
    if output is Output.JSON and not follow:
        print_json([line.model_dump(mode="json", exclude_none=True) for line in lines])
        return
    for line in lines:
        if output is Output.JSON:
            print(line.model_dump_json(exclude_none=True, ensure_ascii=True), flush=True)
        else:
            print("\n".join(_text_of(line)), flush=True)


def _text_of(line: "LogLine") -> Iterable[str]:
    """Yield the line for people, and its traceback."""
    where = f"{line.process} {line.logger}" if line.logger else line.process
    at = f"{line.at.astimezone():%m-%d %H:%M:%S}.{line.at.microsecond // 1000:03d}"
    about = f" [{line.request_id}]" if line.request_id and line.request_id not in line.text else ""
    yield printable(f"{at} {line.level:<7} {where}: {line.text}{about}")
    if line.exception:
        yield from (f"  | {printable(each)}" for each in line.exception.split("\n"))
