"""`slo`: the promises, what is left of their error budgets, and how fast that goes."""

from typing import TYPE_CHECKING

import typer

from appliance.cli.exits import Exit
from appliance.cli.output import Output, milliseconds, print_json, print_table, say
from appliance.cli.target import Format, KeyFile, StateDir, Url, connect

if TYPE_CHECKING:
    from appliance.supervisor.admin.schemas import SloRow

_ALARMING = frozenset({"paging", "broken"})
_WINDOWS = ("5m", "1h", "6h", "3d")
_HEADER = (
    "PROMISE", "OBJECTIVE", "KEPT", "GOOD", "BAD", "BUDGET LEFT",
    *(f"BURN {window}" for window in _WINDOWS), "STATE",
)  # fmt: skip
_NAMES = {"availability": "availability", "ttft": "time to first token", "tpot": "time per token"}


def slo(
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """List the promises and how they are kept. Exit code 6 if one is paging or broken.

    A burn rate of 1 uses the error budget of 30 days up in exactly 30 days.
    """
    from appliance.supervisor.admin.schemas import Collection, SloRow

    with connect(state_dir, url, key_file) as admin:
        rows = admin.call("GET", "/slos", Collection[SloRow]).items
    if output is Output.JSON:
        print_json([row.model_dump(mode="json") for row in rows])
    else:
        _print_rows(rows)
    if any(row.state in _ALARMING for row in rows):
        raise typer.Exit(Exit.DEGRADED)


def _print_rows(rows: "list[SloRow]") -> None:
    if not rows:
        say("nothing is promised: `slo` in the configuration declares what is")
        return
    print_table(_HEADER, (_cells(row) for row in rows))
    for row in rows:
        if row.state in _ALARMING:
            say(_alarm(row))


def _cells(row: "SloRow") -> list[str]:
    limit = "" if row.threshold_ms is None else f" <= {milliseconds(row.threshold_ms)}"
    return [
        f"{_NAMES[row.name]}{limit}",
        _percent(row.objective),
        "-" if row.ratio is None else _percent(round(row.ratio, 5)),
        str(row.good),
        str(row.bad),
        _budget(row.budget_left),
        *(_burn(row, window) for window in _WINDOWS),
        row.state,
    ]


def _budget(left: float | None) -> str:
    if left is None:
        return "-"
    return f"{100 * left:.1f} %" if left >= 0 else f"{-100 * left:.1f} % over"


def _percent(share: float) -> str:
    return f"{100 * share:.6g} %"


def _burn(row: "SloRow", window: str) -> str:
    rate = next((burn.rate for burn in row.burn if burn.window == window), None)
    return "-" if rate is None else f"{rate:.1f}x"


def _alarm(row: "SloRow") -> str:
    name = _NAMES[row.name]
    if row.state == "broken":
        return f"{name}: the error budget of {row.window_days:g} days is used up"
    return f"{name}: at this rate the error budget of {row.window_days:g} days is gone soon"
