"""Runbooks and panels tell the reader to use commands and flags that exist."""

import re
from collections.abc import Iterator

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

from appliance.cli.main import app
from tests.ops.texts import OPS, dashboards, mentioned_commands, panels

ROOT = typer.main.get_command(app)
FOREIGN_FLAGS = {"--enable-feature", "--config"}


def texts() -> Iterator[tuple[str, str]]:
    for path in sorted((OPS / "runbooks").glob("*.md")):
        yield path.name, path.read_text()
    for name, board in dashboards().items():
        yield name, "\n".join(panel["description"] for panel in panels(board))
    yield "compose.yml", (OPS / "compose" / "compose.yml").read_text().replace("#   ", "")
    yield "prometheus.yml", (OPS / "prometheus" / "prometheus.yml").read_text().replace("#   ", "")


def flags_of(command: TyperCommand | TyperGroup) -> set[str]:
    return {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}


def find(words: list[str]) -> tuple[TyperCommand | TyperGroup, list[str]]:
    """The command that a line calls, and what is left of the line."""
    command: TyperCommand | TyperGroup = ROOT
    rest = list(words)
    while isinstance(command, TyperGroup) and rest and rest[0] in command.commands:
        command = command.commands[rest.pop(0)]
    assert command is not ROOT, f"no command {words[0]}"
    if isinstance(command, TyperGroup) and "start" in command.commands and rest:
        command = command.commands["start"]  # what `profile e0` means
    if isinstance(command, TyperGroup):
        assert not rest or rest[0].startswith("-"), f"no command {words}"
    return command, rest


@pytest.mark.parametrize(("name", "text"), [pytest.param(*found, id=found[0]) for found in texts()])
def test_a_text_names_commands_and_flags_that_exist(name: str, text: str):
    commands = mentioned_commands(text)
    for line in commands:
        command, rest = find(line.split()[1:])
        flags = {word.split("=")[0] for word in rest if re.match("--?[a-z]", word)}
        assert flags <= flags_of(command), f"{name}: {line}"
    known = flags_of(ROOT.commands["serve"])
    alone = set(re.findall(r"`(--[a-z-]+)", text))
    assert alone <= known | FOREIGN_FLAGS, f"{name}: {alone - known}"
