"""`explain`: why a request was slow, or what happened at a time."""

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from appliance.cli.exits import CliError, Exit
from appliance.cli.moments import parse_middle
from appliance.cli.output import Output, print_json, print_table, printable, say
from appliance.cli.target import Format, KeyFile, StateDir, Url, connect

if TYPE_CHECKING:
    from appliance.cli.admin_client import AdminClient
    from appliance.supervisor.admin.insight_schemas import Cause, Explanation, Moment

_SETTLE_S = 2.0
"""Records of a request that just ended take a moment to arrive."""
_POLL_S = 0.1
_HOUR = timedelta(hours=1)
_PERCENT = 100
_NS_PER_MS = 1e6


def explain(  # noqa: PLR0913 - options of a command
    request_id: Annotated[
        str | None,
        typer.Argument(help="As in the x-request-id header or the id of the answer."),
    ] = None,
    slowest: Annotated[
        bool, typer.Option("--slowest", help="The slowest request of the last hour.")
    ] = False,
    at: Annotated[
        str | None,
        typer.Option(
            help="What happened then: 14:22 (that minute), an ISO time, or -5m (five minutes ago)."
        ),
    ] = None,
    window: Annotated[
        float, typer.Option(min=1, max=3600, help="Seconds to look at; --at is in their middle.")
    ] = 60.0,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """Say why a request took as long as it did, with the evidence; or what happened at a time."""
    if sum((request_id is not None, slowest, at is not None)) != 1:
        raise CliError("name a request, or give --slowest or --at TIME", Exit.USAGE)
    when = None if at is None else parse_middle(at)
    with connect(state_dir, url, key_file) as admin:
        if when is not None:
            _show_moment(admin.moment(when, window), output)
        else:
            _show(_settled(admin, request_id or _slowest(admin)), output)


def _slowest(admin: "AdminClient") -> str:
    since = (datetime.now(UTC) - _HOUR).isoformat()
    rows = admin.traces({"since": since, "order": "slowest", "limit": 1})
    if not rows:
        raise CliError("no request ended in the last hour")
    return rows[0].request_id


def _settled(admin: "AdminClient", request_id: str) -> "Explanation":
    """Return the explanation; a request that has just ended gets a moment to become known."""
    from appliance.cli.admin_client import NoSuchThingError

    deadline_s = time.monotonic() + _SETTLE_S
    while True:
        try:
            return admin.explanation(request_id)
        except NoSuchThingError:
            if time.monotonic() >= deadline_s:
                raise
        time.sleep(_POLL_S)


# ---------------------------------------------------------------- tables


def _show(found: "Explanation", output: Output) -> None:
    if output is Output.JSON:
        print_json(found.model_dump(mode="json"))
        return
    print(printable(found.verdict))
    for cause in found.causes:
        print()
        _print_cause(cause)
    print()
    header = ("PHASE", "TIME", "MEDIAN", "P95", "")
    print_table(
        header,
        (
            (row.phase, _ms(row.ms), _ms(row.median_ms), _ms(row.p95_ms), _times(row.ratio))
            for row in found.phases
        ),
    )
    say(f"{found.request_id}, compared with {printable(found.cohort)}")
    if not found.complete:
        say("records of its time were lost: the explanation may miss something")


def _print_cause(cause: "Cause") -> None:
    from appliance.cli.waterfall import told

    share = f"{_PERCENT * cause.share:.0f} %"
    print(
        printable(f"{cause.kind}: {_ms(cause.cost_ms)}, {share} of the excess, {cause.confidence}")
    )
    print(printable(f"  {cause.text}"))
    for text in told(cause):
        print(printable(f"  - {text}"))
    if cause.advice:
        print(printable(f"  > {cause.advice}"))


def _show_moment(found: "Moment", output: Output) -> None:
    if output is Output.JSON:
        print_json(found.model_dump(mode="json"))
        return
    for sentence in found.summary:
        print(printable(sentence))
    if found.slowest:
        print()
        header = ("REQUEST", "OUTCOME", "TIME", "TTFT", "WHY")
        print_table(
            header,
            (
                (row.request_id, row.outcome, _ms(row.duration_ms), _ms(row.ttft_ms), row.headline)
                for row in found.slowest
            ),
        )
    if found.engines:
        print()
    for engine_id, figures in found.engines.items():
        print(f"{engine_id}: {', '.join(_figure(*figure) for figure in figures.items())}")
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in found.by_outcome.items())
    since, until = found.since.astimezone(), found.until.astimezone()
    say(f"{since:%H:%M:%S} to {until:%H:%M:%S}: {outcomes or 'no requests'}")


def _figure(name: str, value: float) -> str:
    words = name.replace("_", " ")
    if name.endswith("_share"):
        return f"{words.removesuffix(' share')} {_PERCENT * value:.0f} %"
    if name.endswith("_ms"):
        return f"{words.removesuffix(' ms')} {_ms(value)}"
    return f"{words} {value:,.10g}"


def _ms(value_ms: float | None) -> str:
    from appliance.cli.waterfall import duration

    return "-" if value_ms is None else duration(value_ms * _NS_PER_MS)


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1f}x"
