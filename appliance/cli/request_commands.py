"""`requests` and `abort`: what was asked, and how to end it."""

from typing import TYPE_CHECKING, Annotated

import typer

from appliance.cli.output import (
    Output,
    milliseconds,
    print_json,
    print_table,
    printable,
    say,
    span_of,
)
from appliance.cli.target import Format, KeyFile, StateDir, Url, connect

if TYPE_CHECKING:
    from appliance.supervisor.admin.schemas import RequestRow

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
