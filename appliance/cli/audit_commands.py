"""`audit list|verify`: who changed what, and whether that record is whole."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from appliance.cli.exits import CliError, Exit
from appliance.cli.output import Output, print_json, print_table, say
from appliance.cli.target import Format, KeyFile, StateDir, Url, connect, is_reachable

if TYPE_CHECKING:
    from appliance.supervisor.admin.schemas import AuditCheck, AuditEntry

audit_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Audit log: who changed what; is it whole."
)


@audit_app.command("list")
def list_entries(
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=1000)] = 50,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """List calls that would have changed something, allowed or not, newest last."""
    if not is_reachable(state_dir, url):
        entries = _from_file(_directory(state_dir), limit)
    else:
        with connect(state_dir, url, key_file) as admin:
            entries = admin.audit(limit)
    entries.reverse()
    if output is Output.JSON:
        print_json([entry.model_dump(mode="json") for entry in entries])
        return
    header = ("SEQ", "AT", "ACTOR", "CALL", "TARGET", "STATUS", "OPERATION", "FROM")
    print_table(header, (_cells(entry) for entry in entries))
    if not entries:
        say("no entries: nobody has changed anything yet")


@audit_app.command("verify")
def verify(
    file: Annotated[
        Path | None, typer.Option(help="An archived audit.jsonl instead of the appliance's.")
    ] = None,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """Check that no entry was changed, removed or put in between; exit code 1 if one was.

    It needs no running appliance.
    """
    check = _check(file, state_dir, url, key_file)
    if output is Output.JSON:
        print_json(check.model_dump(mode="json"))
    elif check.ok:
        print(f"ok: {check.entries} entries, unbroken")
    if not check.ok:
        message = f"the audit log is broken at entry {check.first_bad_seq}: {check.problem}"
        hint = f"The {check.entries} entries before it are as they were written."
        raise CliError(message, Exit.FAILED, hint)


def _check(
    file: Path | None, state_dir: Path | None, url: str | None, key_file: Path | None
) -> "AuditCheck":
    if file is None and is_reachable(state_dir, url):
        with connect(state_dir, url, key_file) as admin:
            return admin.audit_check()
    return _check_file(file, state_dir)


def _check_file(file: Path | None, state_dir: Path | None) -> "AuditCheck":
    """Check a file; of an archive nobody remembers the last entry."""
    from appliance.supervisor.audit_file import AUDIT_FILE, remembered_head, verify_file
    from appliance.supervisor.audit_log import check_of
    from appliance.supervisor.desired_state import STATE_FILE

    directory = _directory(state_dir)
    remembered = remembered_head(directory / STATE_FILE) if file is None else None
    path = file or directory / AUDIT_FILE
    if not path.exists() and (remembered is None or remembered.seq == 0):
        raise CliError(f"there is no audit log at {path}", Exit.USAGE)
    try:
        return check_of(verify_file(path, remembered))
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}", Exit.USAGE) from error


def _from_file(directory: Path, limit: int) -> "list[AuditEntry]":
    from pydantic import ValidationError

    from appliance.supervisor.admin.schemas import AuditEntry
    from appliance.supervisor.audit_file import AUDIT_FILE, last_entries

    path = directory / AUDIT_FILE
    try:
        found = last_entries(path, limit)
        return [AuditEntry.model_validate(entry) for entry in found]
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}", Exit.USAGE) from error
    except ValidationError as error:
        hint = "`quarterdeck audit verify` says where it is broken."
        raise CliError(f"{path} has entries that are none", hint=hint) from error


def _directory(state_dir: Path | None) -> Path:
    from appliance.config.paths import client_state_dir

    return client_state_dir(state_dir)


def _cells(entry: "AuditEntry") -> list[str]:
    return [
        str(entry.seq),
        f"{entry.at.astimezone():%Y-%m-%d %H:%M:%S}",
        entry.actor,
        f"{entry.method} {entry.route}",
        entry.target or "-",
        str(entry.status or "-"),
        entry.operation or "-",
        entry.source or "local",
    ]
