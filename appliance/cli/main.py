"""The command line: the table of commands, and errors as exit codes.

Nothing heavy is imported before a command runs, so that `--help` answers at once.
"""

import sys
from typing import Annotated

import typer

from appliance.cli.audit_commands import audit_app
from appliance.cli.config_commands import config_app
from appliance.cli.doctor_command import doctor
from appliance.cli.exits import CliError, Exit
from appliance.cli.explain_command import explain
from appliance.cli.fleet_commands import ps, restart, sleep, wake
from appliance.cli.generate_command import generate
from appliance.cli.key_commands import keys_app
from appliance.cli.local_commands import bench, chat, models_app, top, version
from appliance.cli.log_commands import logs
from appliance.cli.lora_commands import lora_app
from appliance.cli.output import printable, say
from appliance.cli.postmortem_command import postmortem
from appliance.cli.profile_commands import profile_app
from appliance.cli.request_commands import abort, requests
from appliance.cli.serve_command import serve
from appliance.cli.slo_command import slo
from appliance.cli.telemetry_commands import events, telemetry
from appliance.cli.trace_commands import trace, traces
from appliance.config.errors import ConfigError

app = typer.Typer(
    name="quarterdeck",
    help="A managed inference appliance that you can see into.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they would print local variables, and so keys
    rich_markup_mode=None,  # rich costs a tenth of a second
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def quarterdeck(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """A managed inference appliance that you can see into."""


for _command in (
    serve, top, chat, ps, sleep, wake, restart, requests, abort, trace, explain, traces, doctor,
    bench, generate, version,
):  # fmt: skip
    app.command()(_command)
app.command()(slo)
app.command()(telemetry)
app.command()(events)
app.add_typer(lora_app, name="lora")
app.add_typer(keys_app, name="keys")
app.add_typer(models_app, name="models")
app.add_typer(config_app, name="config")
app.add_typer(profile_app, name="profile")
app.command()(postmortem)
app.add_typer(audit_app, name="audit")
app.command()(logs)


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        app()
    except CliError as error:
        _fail(str(error), error.hint)
        sys.exit(error.code)
    except ConfigError as error:
        _fail(str(error), error.hint)
        sys.exit(Exit.USAGE)


def _fail(message: str, hint: str | None) -> None:
    for line in message.splitlines():
        say(f"quarterdeck: {printable(line)}")
    if hint:
        say(printable(f"  {hint}"))
