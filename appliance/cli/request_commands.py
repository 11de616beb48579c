"""`requests`, `abort`, `trace`: what was asked, and where its time went."""

import shutil
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from appliance.cli.output import (
    Output,
    has_colour,
    milliseconds,
    print_json,
    print_table,
    printable,
    say,
    span_of,
)
from appliance.cli.target import Format, KeyFile, StateDir, Url, connect

if TYPE_CHECKING:
    from appliance.cli.admin_client import AdminClient
    from appliance.supervisor.admin.schemas import RequestRow, Trace

_SETTLE_S = 2.0
"""Records of a request that just ended take a moment to arrive."""
_POLL_S = 0.1
_LEAST_COLUMNS = 60

RequestId = Annotated[
    str, typer.Argument(help="As in the x-request-id header or the id of the answer.")
]


def requests(
    state: Annotated[
        str | None, typer.Option(help="live, ended, or a state such as decode or failed.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """List requests, live ones first."""
    with connect(state_dir, url, key_file) as admin:
        rows = admin.requests(state, limit)
    if output is Output.JSON:
        print_json([row.model_dump(mode="json") for row in rows])
        return
    header = ("REQUEST", "STATE", "MODEL", "ENGINE", "TIME", "IN", "OUT", "QUEUE", "TTFT", "KEY")
    print_table(header, (_cells(row) for row in rows))
    if not rows:
        say("no requests; send one with `quarterdeck chat`")


def abort(
    request_id: RequestId,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """End a live request. Exit code 5 if it has ended already."""
    with connect(state_dir, url, key_file) as admin:
        answer = admin.abort(request_id)
    if output is Output.JSON:
        print_json(answer.model_dump(mode="json"))
    else:
        print(printable(f"{answer.id}: aborted after {answer.completion_tokens} tokens"))


def trace(
    request_id: RequestId,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """Draw where a request's time went; `-o json` prints its spans."""
    from appliance.cli.waterfall import draw

    with connect(state_dir, url, key_file) as admin:
        found = _settled(admin, request_id)
    if output is Output.JSON:
        print_json([span.model_dump(mode="json") for span in found.spans])
    else:
        columns = max(shutil.get_terminal_size((80, 24)).columns, _LEAST_COLUMNS)
        for line in draw(found, columns, colour=has_colour(sys.stdout)):
            print(line)
    if found.request.ended_at is None:
        say("it is running: its phases are known when it ends")
    elif not found.complete:
        say("some messages of this request are still on their way, or were lost")


def _settled(admin: "AdminClient", request_id: str) -> "Trace":
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
            if found.complete or is_last or found.request.ended_at is None:
                return found
        time.sleep(_POLL_S)


def _cells(row: "RequestRow") -> list[str]:
    return [
        row.id,
        row.state if row.error_code is None else f"{row.state} ({row.error_code})",
        row.model or "-",
        row.engine or "-",
        span_of(row.age_s),
        str(row.prompt_tokens),
        str(row.completion_tokens),
        milliseconds(row.queue_ms),
        milliseconds(row.ttft_ms),
        row.key_id or "-",
    ]
