"""`keys create|list|revoke`."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from appliance.cli.exits import CliError, Exit
from appliance.cli.output import Output, print_json, print_table, say
from appliance.cli.target import Format, KeyFile, StateDir, Url, connect

_DAY_S = 86400.0


class KeyScope(StrEnum):
    """What a key opens."""

    INFERENCE = "inference"
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


keys_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Keys: make, list, revoke."
)


@keys_app.command("create")
def create(  # noqa: PLR0913 (options of a command)
    scope: Annotated[KeyScope, typer.Option(help="What it opens.")] = KeyScope.INFERENCE,
    name: Annotated[str, typer.Option(help="Shown in lists, to tell keys apart.")] = "",
    out: Annotated[
        Path | None, typer.Option(help="Write the secret to this new file, mode 0600.")
    ] = None,
    allow_content: Annotated[
        bool,
        typer.Option(
            "--allow-content",
            help="Its prompts and outputs may be recorded in traces while that is switched on.",
        ),
    ] = False,
    expires_days: Annotated[float | None, typer.Option(min=0.0, help="Never, if left out.")] = None,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """Make a key and print its secret, this once."""
    file = None if out is None else _new_file(out)
    try:
        with connect(state_dir, url, key_file) as admin:
            lifetime_s = None if expires_days is None else expires_days * _DAY_S
            created = admin.create_key(name, scope.value, lifetime_s, allows_content=allow_content)
    except BaseException:
        if file is not None and out is not None:
            os.close(file)
            out.unlink(missing_ok=True)
        raise
    shown = created.model_dump(mode="json")
    if file is not None:
        with os.fdopen(file, "w") as opened:
            opened.write(f"{created.secret}\n")
        say(f"{created.id} ({created.scope}): written to {out}")
        del shown["secret"]
    if output is Output.JSON:
        print_json(shown)
    elif file is None:
        print(created.secret)
        say(f"{created.id} ({created.scope}): this is the only time that the key is shown")


@keys_app.command("list")
def list_keys(
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """List all keys; nobody can show a secret again."""
    with connect(state_dir, url, key_file) as admin:
        rows = admin.keys()
    if output is Output.JSON:
        print_json([row.model_dump(mode="json") for row in rows])
        return
    cells = (
        [
            row.id,
            row.scope,
            row.name or "-",
            f"{row.created_at:%Y-%m-%d %H:%M}",
            "revoked" if row.revoked_at else "active",
            f"{row.expires_at:%Y-%m-%d %H:%M}" if row.expires_at else "never",
            row.source,
            "allowed" if row.allows_content else "never",
        ]
        for row in rows
    )
    header = ("KEY", "SCOPE", "NAME", "CREATED", "STATE", "EXPIRES", "SOURCE", "CONTENT")
    print_table(header, cells)


@keys_app.command("revoke")
def revoke(
    key_id: Annotated[str, typer.Argument(help="As in `keys list`.")],
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """Make a key useless, at once and for good."""
    with connect(state_dir, url, key_file) as admin:
        row = admin.revoke_key(key_id)
    if output is Output.JSON:
        print_json(row.model_dump(mode="json"))
    else:
        print(f"{row.id}: revoked")


def _new_file(path: Path) -> int:
    """Open the file before the key exists, so that no key is made in vain."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        hint = "Remove it first; the key in it stays valid until you revoke it."
        raise CliError(f"{path} exists already", Exit.USAGE, hint) from error
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}", Exit.USAGE) from error
