"""`ps`, `sleep`, `wake`, `restart`: engines and what one can do with them."""

import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from appliance.cli.engine_facts import engine_facts, weights_of
from appliance.cli.exits import CliError, Exit
from appliance.cli.output import Output, print_json, print_table, printable, say, size, span_of
from appliance.cli.target import Format, KeyFile, StateDir, Url, connect

if TYPE_CHECKING:
    from appliance.cli.admin_client import AdminClient
    from appliance.supervisor.admin.schemas import EngineRow, Operation

_HEALTHY = frozenset({"ready", "asleep"})
_ALL = "all"

Engine = Annotated[str | None, typer.Argument(help="e0, e1, ... or all; needless with one engine.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait for the end.")]
Wait = Annotated[bool, typer.Option(help="Wait for the end.")]


class Mode(StrEnum):
    """What happens to running requests."""

    WAIT = "wait"
    ABORT = "abort"


def ps(
    engine: Annotated[
        str | None, typer.Argument(help="e0, e1, ...: all that is known of one.")
    ] = None,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """List the engines, or show one. Exit code 6 if one neither serves nor sleeps."""
    with connect(state_dir, url, key_file) as admin:
        rows = [row for row in admin.engines() if engine in (None, row.id)]
    if engine is not None and not rows:
        raise CliError(f"there is no engine {engine}", Exit.USAGE, "`quarterdeck ps` lists them.")
    if output is Output.JSON:
        shown = [row.model_dump(mode="json") for row in rows]
        print_json(shown if engine is None else shown[0])
    elif engine is None:
        _print_engines(rows)
    else:
        print_table(("FACT", "VALUE"), engine_facts(rows[0]))
    if any(row.state not in _HEALTHY for row in rows):
        raise typer.Exit(Exit.DEGRADED)


def sleep(  # noqa: PLR0913 (options of a command)
    engine: Engine = None,
    level: Annotated[int, typer.Option(min=1, max=2, help="2 keeps nothing at all.")] = 1,
    mode: Annotated[
        Mode, typer.Option(help="Let running requests finish, or end them.")
    ] = Mode.WAIT,
    timeout: Timeout = 60.0,
    wait: Wait = True,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """Give an engine's memory back; the next request wakes it."""
    body = {"level": level, "mode": mode.value, "timeout_s": timeout}
    with connect(state_dir, url, key_file) as admin:
        _run(admin, "sleep", engine, body, _Plan(timeout + _MARGIN_S, wait, output))


def wake(  # noqa: PLR0913 (options of a command)
    engine: Engine = None,
    timeout: Timeout = 600.0,
    wait: Wait = True,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """Load what sleeping gave back."""
    with connect(state_dir, url, key_file) as admin:
        _run(admin, "wake", engine, None, _Plan(timeout, wait, output))


def restart(  # noqa: PLR0913 (options of a command)
    engine: Engine = None,
    timeout: Timeout = 600.0,
    wait: Wait = True,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """Stop an engine and start it anew; this also leaves a crash loop."""
    with connect(state_dir, url, key_file) as admin:
        _run(admin, "restart", engine, None, _Plan(timeout, wait, output))


_MARGIN_S = 10.0
"""The engine itself gives up after the timeout; its answer shall arrive."""


class _Plan:
    """How a verb is followed and printed."""

    def __init__(self, timeout_s: float, wait: bool, output: Output) -> None:
        self.timeout_s = timeout_s
        self.wait = wait
        self.output = output


def _run(
    admin: "AdminClient",
    verb: str,
    engine: str | None,
    body: Mapping[str, Any] | None,
    plan: _Plan,
) -> None:
    begun = [admin.verb(engine_id, verb, body) for engine_id in _chosen(admin, engine)]
    if plan.wait:
        begun = [admin.finish(operation, plan.timeout_s, _watch) for operation in begun]
        _clear_progress()
    if plan.output is Output.JSON:
        found = [operation.model_dump(mode="json") for operation in begun]
        print_json(found[0] if len(found) == 1 else found)
        return
    for operation in begun:
        print(printable(_sentence(operation)))


def _chosen(admin: "AdminClient", engine: str | None) -> list[str]:
    if engine is not None and engine != _ALL:
        return [engine]
    names = [row.id for row in admin.engines()]
    if engine is None and len(names) != 1:
        raise CliError(f"which engine? {', '.join(names)} or all", Exit.USAGE)
    return names


def _sentence(operation: "Operation") -> str:
    if operation.state != "done":
        return f"{operation.target}: {operation.kind} begun ({operation.id})"
    result = operation.result or {}
    match operation.kind:
        case "sleep":
            freed = result.get("freed_bytes")
            told = f", freed {size(freed)}" if isinstance(freed, int) else ""
            return f"{operation.target}: asleep{told}"
        case "wake":
            return f"{operation.target}: awake"
        case "restart":
            return f"{operation.target}: restarted"
        case kind:
            return f"{operation.target}: {kind} done"


def _watch(operation: "Operation") -> None:
    if not sys.stderr.isatty():
        return
    done = ""
    if operation.progress is not None and operation.progress.total:
        done = f" {100 * operation.progress.done / operation.progress.total:.0f} %"
    text = printable(f"{operation.target}: {operation.phase or operation.kind}{done}")
    print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)


def _clear_progress() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _print_engines(rows: list["EngineRow"]) -> None:
    print_table(_HEADER, (_cells(row) for row in rows))
    for row in rows:
        if row.reason:
            say(printable(f"{row.id}: {row.reason}"))
        if row.dtype_reason:
            say(printable(f"{row.id}: computes in {row.dtype}: {row.dtype_reason}"))
        if row.kernel_backend == "reference" and row.device == "cpu" and row.kernel_reason:
            say(printable(f"{row.id}: runs on the slower reference kernels: {row.kernel_reason}"))
        if row.heartbeat_age_s is not None and row.heartbeat_age_s > _OLD_HEARTBEAT_S:
            say(f"{row.id}: last heartbeat {span_of(row.heartbeat_age_s)} ago")


_OLD_HEARTBEAT_S = 5.0
_HEADER = (
    "ENGINE", "STATE", "MODEL", "DEVICE", "WEIGHTS", "KERNELS", "MEMORY", "RUN", "WAIT", "KV",
    "TOK/S", "PID",
)  # fmt: skip


def _cells(row: "EngineRow") -> list[str]:
    return [
        row.id,
        _state(row),
        row.model,
        row.device,
        weights_of(row),
        row.kernel_path or row.kernel_backend or "-",
        size(row.resident_bytes),
        str(row.running),
        str(row.waiting),
        f"{100 * row.kv_used_ratio:.0f} %",
        f"{row.tokens_per_s:.1f}",
        "-" if row.pid is None else str(row.pid),
    ]


def _state(row: "EngineRow") -> str:
    if row.sleep_level and row.state == "asleep":
        return f"asleep ({row.sleep_level})"
    if row.progress is not None and row.progress.total:
        return f"{row.state} {100 * row.progress.done / row.progress.total:.0f} %"
    return row.state
