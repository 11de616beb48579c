"""The shipped files of ops/, as the tests read them."""

import functools
import json
import re
from pathlib import Path
from typing import Any

import yaml

from tests.ops.promql import Reader

OPS = Path(__file__).parents[2] / "ops"
ALERTS = OPS / "prometheus" / "alerts.rules.yml"
VLLM = OPS / "prometheus" / "vllm-compat.rules.yml"


@functools.cache
def dashboards() -> dict[str, dict[str, Any]]:
    """The committed dashboards by file name."""
    files = sorted((OPS / "grafana" / "json").glob("*.json"))
    return {path.name: json.loads(path.read_text()) for path in files}


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Panels that ask for something; rows do not."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def rules(path: Path) -> list[dict[str, Any]]:
    """All rules of a file, in order."""
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules(ALERTS) if "alert" in rule]


@functools.cache
def reader() -> Reader:
    """A reader that knows the names that alerts.rules.yml records."""
    reader = Reader()
    for rule in rules(ALERTS):
        if "record" in rule:
            reader.recorded[rule["record"]] = reader.read(rule["expr"])
    return reader


def mentioned_commands(text: str) -> list[str]:
    """Commands of ours that a text tells the reader to use."""
    quoted = re.findall(r"`(quarterdeck [^`]+)`", text)
    lines = re.findall(r"^(quarterdeck .*?)(?:\s{2,}#.*)?$", text, re.MULTILINE)
    return quoted + lines
