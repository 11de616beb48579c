"""`telemetry` and `events`: what is recorded and exported, and what the journal says."""

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from appliance.cli.exits import CliError, Exit
from appliance.cli.moments import parse_moment
from appliance.cli.output import Output, print_json, print_table, printable, say, size
from appliance.cli.target import Format, KeyFile, StateDir, Url, connect

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from appliance.cli.admin_client import AdminClient
    from appliance.supervisor.admin.schemas import JournalEvent, TelemetrySettings

_MAX_EVENTS = 1000
_LEVELS = ("info", "warning", "error")


class EventLevel(StrEnum):
    """How urgent an event is."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def telemetry(  # noqa: PLR0913 (options of a command)
    record: Annotated[
        bool | None, typer.Option("--record/--no-record", help="Hops, steps and request records.")
    ] = None,
    export: Annotated[
        bool | None, typer.Option("--export/--no-export", help="Send spans to the collector.")
    ] = None,
    ratio: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Share of traces exported without another reason."),
    ] = None,
    slowest: Annotated[
        int | None,
        typer.Option(min=0, max=1000, help="Slowest requests of a minute that are exported."),
    ] = None,
    content: Annotated[
        bool | None,
        typer.Option(
            "--content/--no-content",
            help="Record prompts and outputs, of keys that allow it. Needs an admin key.",
        ),
    ] = None,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """Show what is recorded and exported, or change it; a change lasts until the appliance ends."""
    wanted: dict[str, Any] = {
        "recording": record,
        "export": export,
        "trace_ratio": ratio,
        "slowest_per_minute": slowest,
        "content": content,
    }
    change = {name: value for name, value in wanted.items() if value is not None}
    with connect(state_dir, url, key_file) as admin:
        settings = admin.change_telemetry(change) if change else admin.telemetry()
    if output is Output.JSON:
        print_json(settings.model_dump(mode="json"))
    else:
        print_table(("SETTING", "VALUE"), _settings_rows(settings))


def events(  # noqa: PLR0913 (options of a command)
    since: Annotated[str | None, typer.Option(help="14:22, -30m, 2026-11-29T14:22.")] = None,
    until: Annotated[str | None, typer.Option(help="As --since.")] = None,
    level: Annotated[EventLevel | None, typer.Option(help="This level and worse.")] = None,
    kind: Annotated[
        str | None, typer.Option(help="Its beginning: engine., operation.failed.")
    ] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=_MAX_EVENTS)] = 50,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as they happen.")] = False,
    state_dir: StateDir = None,
    url: Url = None,
    key_file: KeyFile = None,
    output: Format = Output.TABLE,
) -> None:
    """Show what happened to engines, gateways, operations and keys, the newest last."""
    if follow and until is not None:
        raise CliError("--follow has no end: leave --until out", Exit.USAGE)
    query: dict[str, Any] = {
        "since": _iso(since),
        "until": _iso(until),
        "min_level": None if level is None else level.value,
        "kind": kind,
        "limit": limit,
    }
    with connect(state_dir, url, key_file) as admin:
        found = admin.events({name: value for name, value in query.items() if value is not None})
        found.reverse()
        _print_events(found, output, follow=follow)
        if not found and not follow:
            say("no such events")
        if follow:
            last_id = found[-1].id if found else 0
            fitting = _fitting(_following(admin, last_id), level, kind)
            _print_all(fitting, output)


def _settings_rows(settings: "TelemetrySettings") -> "Iterator[tuple[str, str]]":
    yield "record", _on(settings.recording)
    yield "export", _on(settings.export)
    yield "ratio", f"{settings.trace_ratio:g}"
    yield "slowest per minute", str(settings.slowest_per_minute)
    kept = {
        "errors": settings.keep_errors,
        "aborts": settings.keep_aborts,
        "preempted": settings.keep_preempted,
        "SLO breaches": settings.keep_slo_breaches,
    }
    yield "kept always", ", ".join(name for name, on in kept.items() if on) or "-"
    yield "content", _on(settings.content)
    collector = settings.collector
    if collector is None:
        yield "collector", "none"
    else:
        told = f"{collector.endpoint} ({collector.protocol}): {collector.state}"
        yield "collector", f"{told}, {collector.last_error}" if collector.last_error else told
        counts = (collector.exported, collector.failed, collector.dropped, collector.queued)
        yield "spans", "{} exported, {} failed, {} dropped, {} queued".format(*counts)
    facts = settings.stored_spans
    told = (
        "the file cannot be read"
        if facts is None
        else f"{facts} facts, {size(settings.stored_bytes)}"
    )
    yield "stored", told
    if settings.oldest_at is not None:
        yield "oldest", f"{settings.oldest_at.astimezone():%Y-%m-%d %H:%M:%S}"
    lost = [f"{d.process} {d.stage}: {d.dropped}" for d in settings.drops if d.dropped]
    yield "lost records", ", ".join(lost) or "none"


def _on(value: bool) -> Literal["on", "off"]:
    return "on" if value else "off"


def _iso(text: str | None) -> str | None:
    at: datetime | None = None if text is None else parse_moment(text)
    return None if at is None else at.isoformat()


def _following(admin: "AdminClient", last_id: int) -> "Iterator[JournalEvent]":
    """Yield what happens from now on, and what happened since `last_id`."""
    from appliance.supervisor.admin.schemas import JournalEvent, Snapshot

    for name, text in admin.stream():
        if name == "event":
            fresh = [JournalEvent.model_validate_json(text)]
        elif name == "snapshot":
            fresh = sorted(Snapshot.model_validate_json(text).events, key=lambda event: event.id)
        else:
            continue
        for event in fresh:
            if event.id > last_id:
                last_id = event.id
                yield event


def _fitting(
    found: "Iterable[JournalEvent]", level: EventLevel | None, kind: str | None
) -> "Iterator[JournalEvent]":
    least = 0 if level is None else _LEVELS.index(level)
    for event in found:
        if _LEVELS.index(event.level) >= least and event.kind.startswith(kind or ""):
            yield event


def _print_all(found: "Iterable[JournalEvent]", output: Output) -> None:
    """Print until interrupted, or until the appliance ends."""
    try:
        for event in found:
            _print_events([event], output, follow=True)
    except KeyboardInterrupt:
        return
    say("the appliance ended the stream")


def _print_events(found: "list[JournalEvent]", output: Output, *, follow: bool) -> None:
    if output is Output.JSON and not follow:
        print_json([event.model_dump(mode="json") for event in found])
        return
    for event in found:
        if output is Output.JSON:
            print(event.model_dump_json(ensure_ascii=True), flush=True)
        else:
            at = f"{event.at.astimezone():%m-%d %H:%M:%S}"
            line = f"{at} {event.level:<7} {event.kind:<20} {event.subject}: {event.text}"
            print(printable(line), flush=True)
