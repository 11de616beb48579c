"""`trace` and `traces`: where a request's time went, and which requests were kept."""

import json
import re
import shutil
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from appliance.cli.exits import CliError, Exit
from appliance.cli.output import (
    Output,
    has_colour,
    milliseconds,
    print_json,
    print_table,
    printable,
    say,
)
from appliance.cli.target import Format, KeyFile, StateDir, Url, connect

if TYPE_CHECKING:
    from appliance.cli.admin_client import AdminClient
    from appliance.supervisor.admin.schemas import Explanation, Span, Trace, TraceRow

_SETTLE_S = 2.0
"""Records of a request that just ended take a moment to arrive."""
_FRESH = timedelta(seconds=10)
_POLL_S = 0.1
_LEAST_COLUMNS = 60

_OWN = re.compile(r"e\d+|op-[0-9a-f]+|[0-9a-f]{32}")
"""Names of the appliance's own traces: of engines, operations, and by id."""

RequestId = Annotated[
    str,
    typer.Argument(
        help="As in the x-request-id header or the id of the answer; or e0, op-..., a trace id."
    ),
]
_File = Path | None


def trace(  # noqa: PLR0913 (options of a command)
    request_id: RequestId,
    html: Annotated[_File, typer.Option(help="Write a page of HTML that needs no network.")] = None,
    perfetto: Annotated[_File, typer.Option(help="Write a file for ui.perfetto.dev.")] = None,
    otlp: Annotated[_File, typer.Option(help="Write OTLP JSON, for other back ends.")] = None,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """Draw where a request's time went; `-o json` prints its spans.

    An engine's id shows its last start, an operation's id what it did.
    """
    with connect(state_dir, url, key_file) as admin:
        if _OWN.fullmatch(request_id):
            _show_own(admin.spans(request_id), output)
            return
        found = settled_trace(admin, request_id)
        wants_reasons = html is not None or output is not Output.JSON
        why = _explanation(admin, found) if wants_reasons else None
    written = _write_files(found, why, html=html, perfetto=perfetto, otlp=otlp)
    if output is Output.JSON:
        print_json([span.model_dump(mode="json") for span in found.spans])
    elif not written:
        _draw(found, why)
    if found.request.ended_at is None:
        say("it is running: its phases are known when it ends")
    elif not found.complete:
        say("some messages of this request are still on their way, or were lost")


def traces(  # noqa: PLR0913 (options of a command)
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20,
    model: Annotated[str | None, typer.Option(help="Served name.")] = None,
    key: Annotated[str | None, typer.Option(help="Id of the key.")] = None,
    engine: Annotated[str | None, typer.Option(help="e0, e1, ...")] = None,
    outcome: Annotated[
        str | None, typer.Option(help="finished, aborted, failed or rejected.")
    ] = None,
    min_ms: Annotated[float | None, typer.Option(min=0, help="At least this long.")] = None,
    trace_id: Annotated[str | None, typer.Option(help="Trace id of the caller.")] = None,
    since: Annotated[str | None, typer.Option(help="14:22, 2026-11-29T14:22 or -30m.")] = None,
    until: Annotated[str | None, typer.Option(help="As --since.")] = None,
    slowest: Annotated[bool, typer.Option("--slowest", help="Slowest first, not newest.")] = False,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """Search the stored traces."""
    from appliance.cli.moments import parse_moment

    query: dict[str, Any] = {
        "limit": limit,
        "model": model,
        "key_id": key,
        "engine": engine,
        "outcome": outcome,
        "min_ms": min_ms,
        "trace_id": trace_id,
        "since": parse_moment(since).isoformat() if since else None,
        "until": parse_moment(until).isoformat() if until else None,
        "order": "slowest" if slowest else None,
    }
    with connect(state_dir, url, key_file) as admin:
        rows = admin.traces({name: value for name, value in query.items() if value is not None})
    if output is Output.JSON:
        print_json([row.model_dump(mode="json") for row in rows])
        return
    header = ("REQUEST", "OUTCOME", "MODEL", "ENGINE", "TIME", "TTFT", "KEY", "WHY")
    print_table(header, (_cells(row) for row in rows))
    if not rows:
        say("no stored trace fits")


def settled_trace(admin: "AdminClient", request_id: str) -> "Trace":
    """Return the trace; one that is not there or not complete gets a moment to become it."""
    from appliance.cli.admin_client import NoSuchThingError

    deadline_s = time.monotonic() + _SETTLE_S
    while True:
        is_last = time.monotonic() >= deadline_s
        try:
            found = admin.trace(request_id)
        except NoSuchThingError:
            if is_last:
                raise
        else:
            if found.complete or is_last or not _is_fresh(found):
                return found
        time.sleep(_POLL_S)


def _is_fresh(found: "Trace") -> bool:
    """Whether the request ended just now: what an older trace lacks does not come any more."""
    ended_at = found.request.ended_at
    return ended_at is not None and datetime.now(UTC) - ended_at < _FRESH


def _explanation(admin: "AdminClient", found: "Trace") -> "Explanation | None":
    """Return why; a request that runs, or an older server, has no explanation."""
    from appliance.cli.admin_client import NoSuchThingError

    if found.request.ended_at is None:
        return None
    try:
        return admin.explanation(found.request.id)
    except NoSuchThingError:
        return None


def _show_own(spans: "list[Span]", output: Output) -> None:
    """Print a trace of the appliance itself."""
    from appliance.cli.waterfall import draw_spans

    if output is Output.JSON:
        print_json([span.model_dump(mode="json") for span in spans])
        return
    for line in draw_spans(spans, _columns(), colour=has_colour(sys.stdout)):
        print(line)


def _columns() -> int:
    return max(shutil.get_terminal_size((80, 24)).columns, _LEAST_COLUMNS)


def _draw(found: "Trace", why: "Explanation | None") -> None:
    from appliance.cli.waterfall import draw

    for line in draw(found, _columns(), why, colour=has_colour(sys.stdout)):
        print(line)


def _write_files(
    found: "Trace",
    why: "Explanation | None",
    *,
    html: _File,
    perfetto: _File,
    otlp: _File,
) -> bool:
    """Write what was asked for; return whether anything was."""
    if html is not None:
        from appliance.trace_formats.page import trace_page

        _write(html, trace_page(found, why), "open it in a browser")
    if perfetto is not None:
        from appliance.trace_formats.chrome import chrome_trace

        _write(perfetto, json.dumps(chrome_trace(found)), "open it at ui.perfetto.dev")
    if otlp is not None:
        from appliance.trace_formats.otlp_json import otlp_json

        _write(otlp, json.dumps(otlp_json(found)), "post it to a collector's /v1/traces")
    return not (html is perfetto is otlp is None)


def _write(path: Path, content: str, hint: str) -> None:
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}", Exit.FAILED) from error
    say(f"wrote {path} ({len(content)} bytes): {hint}")


def _cells(row: "TraceRow") -> list[str]:
    return [
        row.request_id,
        row.outcome,
        row.model or "-",
        row.engine or "-",
        milliseconds(row.duration_ms),
        milliseconds(row.ttft_ms),
        row.key_id or "-",
        printable(row.headline),
    ]
