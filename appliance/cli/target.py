"""Which appliance a command talks to: the options that all of them share."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from appliance.cli.exits import CliError, Exit
from appliance.cli.output import Output

if TYPE_CHECKING:
    from appliance.cli.admin_client import AdminClient
    from appliance.config.paths import Instance

StateDir = Annotated[
    Path | None,
    typer.Option(help="State directory of the appliance meant. [env: QUARTERDECK_STATE_DIR]"),
]
Url = Annotated[
    str | None,
    typer.Option(help="Control plane over TCP instead of its socket. [env: QUARTERDECK_URL]"),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file", help="File with the key for --url; else QUARTERDECK_ADMIN_KEY is the key."
    ),
]
Format = Annotated[Output, typer.Option("-o", "--output", help="Table for people, or JSON.")]


def connect(state_dir: Path | None, url: str | None, key_file: Path | None) -> "AdminClient":
    """Open the admin API: the socket of the local appliance, or `--url` with a key.

    Raises:
        CliError: 3, nothing is running there; 2, the address or the key file cannot be used.
    """
    from appliance.cli.admin_client import over_socket, over_url

    if url := control_plane_url(state_dir, url):
        return over_url(url, read_key(key_file))
    return over_socket(local_instance(state_dir).admin_socket)


def control_plane_url(state_dir: Path | None, url: str | None) -> str | None:
    """Return the address that is meant, None for the socket of a local appliance.

    Raises:
        CliError: 2, it is no address.
    """
    found = url or (None if state_dir else os.environ.get("QUARTERDECK_URL"))
    if found and not found.startswith(("http://", "https://")):
        raise CliError(f"--url {found}: give one such as http://127.0.0.1:8001", Exit.USAGE)
    return found


def is_reachable(state_dir: Path | None, url: str | None) -> bool:
    """Whether a command can ask an appliance: one is named by `--url`, or runs here.

    Raises:
        CliError: 2, the address is none.
    """
    from appliance.config.paths import NotRunningError, client_state_dir, find_instance

    if control_plane_url(state_dir, url):
        return True
    try:
        find_instance(client_state_dir(state_dir))
    except NotRunningError:
        return False
    return True


def local_instance(state_dir: Path | None) -> "Instance":
    """Return the appliance that runs on this machine with this state directory.

    Raises:
        CliError: 3, there is none.
    """
    from appliance.config.paths import NotRunningError, client_state_dir, find_instance

    try:
        return find_instance(client_state_dir(state_dir))
    except NotRunningError as error:
        hint = "Start one with `quarterdeck serve`, or name another with --state-dir."
        raise CliError(str(error), Exit.NO_ACCESS, hint) from error


def read_key(key_file: Path | None) -> str | None:
    """Return the key for `--url`: the first one of the file, else of `QUARTERDECK_ADMIN_KEY`.

    Raises:
        CliError: 2, the file cannot be used.
    """
    if key_file is None:
        return os.environ.get("QUARTERDECK_ADMIN_KEY")
    from appliance.config.key_files import BadKeyError, read_keys

    try:
        return read_keys(key_file)[0]
    except BadKeyError as error:
        raise CliError(str(error), Exit.USAGE) from error
