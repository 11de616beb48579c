"""What is recorded and exported, as rows: settings first, then how the pipeline does."""

from dataclasses import dataclass
from typing import Final, Literal

from appliance.supervisor.admin.schemas import (
    ChangeTelemetry,
    ExportStatus,
    Scope,
    TelemetrySettings,
)
from dashboard.view.lines import BAD, BOLD, DIM, GOOD, WARN, Line, Piece, Row, fit, line
from dashboard.view.text import clean, clock, count, size

_NAME_WIDTH: Final = 20
_VALUE_WIDTH: Final = 8
_EXPORT_TONES: Final = {"works": ("✓", GOOD), "idle": ("·", DIM), "failing": ("✗", BAD)}

SwitchName = Literal[
    "recording",
    "export",
    "keep_errors",
    "keep_aborts",
    "keep_preempted",
    "keep_slo_breaches",
    "content",
]
AmountName = Literal["trace_ratio", "slowest_per_minute"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One row that can be changed."""

    name: SwitchName | AmountName
    label: str
    what: str
    scope: Scope = "operator"


SETTINGS: Final = (
    Setting("recording", "recording", "hops, steps, requests; counting always goes on"),
    Setting("export", "export", "send spans of the requests below to the collector"),
    Setting("trace_ratio", "ratio", "share of all requests that is exported, 0 to 1"),
    Setting("slowest_per_minute", "slowest per minute", "so many of each minute are exported too"),
    Setting("keep_errors", "errors", "requests that failed"),
    Setting("keep_aborts", "aborts", "requests that their client left"),
    Setting("keep_preempted", "preempted", "requests that lost their KV blocks once"),
    Setting("keep_slo_breaches", "SLO breaches", "requests that broke a promise"),
    Setting("content", "content", "prompts and outputs, of keys that allow it", "admin"),
)


def setting_of(name: str | None) -> Setting | None:
    """The setting with this name."""
    return next((setting for setting in SETTINGS if setting.name == name), None)


def value_of(settings: TelemetrySettings, setting: Setting) -> bool | float:
    """What holds now."""
    values: dict[str, bool | float] = {
        "recording": settings.recording,
        "export": settings.export,
        "trace_ratio": settings.trace_ratio,
        "slowest_per_minute": settings.slowest_per_minute,
        "keep_errors": settings.keep_errors,
        "keep_aborts": settings.keep_aborts,
        "keep_preempted": settings.keep_preempted,
        "keep_slo_breaches": settings.keep_slo_breaches,
        "content": settings.content,
    }
    return values[setting.name]


def changed(setting: Setting, value: bool | float) -> ChangeTelemetry:
    """The body that sets one value; raises ValidationError when it is out of range."""
    return ChangeTelemetry.model_validate({setting.name: value})


def read_amount(setting: Setting, text: str) -> float | None:
    """The number that was typed; None if it is none, or out of range."""
    try:
        value = float(text)
    except ValueError:
        return None
    if setting.name == "trace_ratio":
        return value if 0 <= value <= 1 else None
    return int(value) if value.is_integer() and 0 <= value <= _MOST_SLOWEST else None


_MOST_SLOWEST: Final = 1000


def telemetry_rows(settings: TelemetrySettings) -> list[Row]:
    """Settings that can be selected; then collector, losses and store."""
    rows = [Row(setting.name, _setting(settings, setting)) for setting in SETTINGS]
    rest = [(), *_collector(settings.collector), *_store(settings), *_drops(settings)]
    return [*rows, *(Row("", text) for text in rest)]


def _setting(settings: TelemetrySettings, setting: Setting) -> Line:
    value = value_of(settings, setting)
    if isinstance(value, bool):
        text = Piece(fit("● on" if value else "○ off", _VALUE_WIDTH), GOOD if value else DIM)
    else:
        text = Piece(fit(f"{value:g}", _VALUE_WIDTH), BOLD)
    return line(f" {fit(setting.label, _NAME_WIDTH)}", text, Piece(setting.what, DIM))


def _fact(name: str, *pieces: Piece | str) -> Line:
    return line(Piece(f" {fit(name, _NAME_WIDTH)}", DIM), *pieces)


def _collector(collector: ExportStatus | None) -> list[Line]:
    if collector is None:
        return [_fact("collector", Piece("none is configured", DIM))]
    glyph, tone = _EXPORT_TONES[collector.state]
    lines = [
        _fact(
            "collector",
            Piece(f"{glyph} {collector.state}  ", tone),
            f"{clean(collector.endpoint)} ({collector.protocol})",
        ),
        _fact(
            "spans",
            f"{count(collector.exported)} exported, {count(collector.queued)} queued",
            Piece(
                f", {count(collector.failed)} failed, {count(collector.dropped)} dropped",
                BAD if collector.failed or collector.dropped else DIM,
            ),
        ),
    ]
    if collector.last_error:
        lines.append(_fact("last error", Piece(clean(collector.last_error), WARN)))
    return lines


def _store(settings: TelemetrySettings) -> list[Line]:
    if settings.stored_spans is None:
        return [_fact("trace store", Piece("off", DIM))]
    since = f", since {clock(settings.oldest_at)}" if settings.oldest_at else ""
    text = f"{count(settings.stored_spans)} facts in {size(settings.stored_bytes)}{since}"
    return [_fact("trace store", text)]


def _drops(settings: TelemetrySettings) -> list[Line]:
    lost = [drop for drop in settings.drops if drop.dropped]
    if not lost:
        return [_fact("records lost", Piece("✓ none", GOOD))]
    return [
        _fact(
            "records lost",
            Piece(f"▲ {count(drop.dropped)}  ", WARN),
            f"{clean(drop.process)}: {clean(drop.stage)}",
        )
        for drop in lost
    ]
