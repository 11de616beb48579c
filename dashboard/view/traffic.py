"""The throughput and latency panels of the fleet screen."""

from typing import Final

from appliance.supervisor.admin.schemas import Percentiles
from dashboard.store.history import Series
from dashboard.store.state import State
from dashboard.view.chart import area, blocks
from dashboard.view.lines import BAD, DIM, GOOD, INFO, REST, WARN, Line, Piece, fit, line
from dashboard.view.text import NOTHING, clean, count, meter, milliseconds, rate

_VALUE_WIDTH: Final = 10
_LABEL_WIDTH: Final = 6
_TALL: Final = 9
_LEAST_TREND: Final = 6

_Spec = tuple[str, str, str, str, int]


def throughput_lines(state: State, width: int, height: int) -> list[Line]:
    """Tokens out and in, requests, errors: a chart and the current value of each."""
    tall = height >= _TALL
    stats = state.stats
    charts: tuple[_Spec, ...] = (
        ("out", "out", _rate(stats and stats.generation_tokens_per_s), GOOD, 3 if tall else 1),
        ("in", "in", _rate(stats and stats.prompt_tokens_per_s), INFO, 2 if tall else 1),
        ("req", "requests", _rate(stats and stats.requests_per_s), REST, 1),
        ("err", "errors", _percent(stats and stats.error_ratio), BAD, 1),
    )
    lines: list[Line] = []
    for spec in charts:
        lines.extend(_chart(state, spec, width))
    return [*lines, *_totals(state, tall)]


def _chart(state: State, spec: _Spec, width: int) -> list[Line]:
    label, name, value, tone, height = spec
    series = state.trends.of(name)
    chart_width = max(4, width - _LABEL_WIDTH - _VALUE_WIDTH - 1)
    if height == 1 and name in ("requests", "errors"):
        rows = [blocks(series, chart_width, 1.0 if name == "errors" else None)]
    else:
        rows = area(series, chart_width, height)
    return [
        line(
            Piece(f" {label if row == 0 else '':<{_LABEL_WIDTH - 1}}", DIM),
            Piece(text, tone),
            fit(value if row == 0 else "", _VALUE_WIDTH, right=True),
        )
        for row, text in enumerate(rows)
    ]


def _totals(state: State, tall: bool) -> list[Line]:
    """What became of all requests since the start."""
    stats = state.stats
    if stats is None:
        return []
    lost = f"  records lost {count(stats.dropped_records)}" if stats.dropped_records else ""
    received = f"  of {count(stats.received)} received" if tall else ""
    return [
        line(
            Piece(f" done {count(stats.finished)}", DIM),
            Piece(f" failed {count(stats.failed)}", BAD if stats.failed else DIM),
            Piece(f" abort {count(stats.aborted)} refuse {count(stats.rejected)}{received}", DIM),
            Piece(lost, WARN),
        )
    ]


def throughput_peak(state: State) -> str:
    """For the frame: the best second of the shown history."""
    peak = max((value for value in state.trends.of("out") if value is not None), default=0.0)
    return f"peak out {count(peak)}/s"


def latency_lines(state: State, width: int, height: int) -> list[Line]:
    """Percentiles of the window, how the 95th went, and with room how full the KV caches are."""
    room = min(40, width - 31)
    trend_width = room if room >= _LEAST_TREND else 0
    title = f" {'':<6}{'p50':>7}{'p95':>7}{'p99':>8}  {'trend' if trend_width else ''}"
    stats = state.stats
    rows: tuple[tuple[str, Percentiles | None, str], ...] = (
        ("TTFT", stats and stats.ttft_ms, "ttft"),
        ("ITL", stats and stats.tpot_ms, "tpot"),
        ("queue", stats and stats.queue_ms, "queue"),
        ("total", stats and stats.e2e_ms, "e2e"),
    )
    lines = [line(Piece(title[:width], DIM))]
    for label, percentiles, name in rows:
        lines.append(_latency(label, percentiles, state.trends.of(name), trend_width))
    room = height - len(lines) - 1
    return [*lines, (), *_kv_lines(state, width)[:room]] if room > 0 else lines


def _kv_lines(state: State, width: int) -> list[Line]:
    bar_width = max(10, width - 30)
    return [
        line(
            Piece(f" {'KV ' + clean(engine.id):<6}", DIM),
            f"{engine.kv_used_ratio * 100:>6.0f}%  ",
            Piece(meter(engine.kv_used_ratio, bar_width), REST),
        )
        for engine in state.engines.values()
        if engine.state in ("ready", "draining")
    ]


def _latency(label: str, values: Percentiles | None, trend: Series, trend_width: int) -> Line:
    shown = values or Percentiles()
    slow = _is_slow(shown.p95, trend)
    return line(
        Piece(f" {label:<6}", DIM),
        f"{milliseconds(shown.p50):>7}",
        Piece(f"{milliseconds(shown.p95):>7}{'▲' if slow else ' '}", WARN if slow else ""),
        f"{milliseconds(shown.p99):>7}",
        Piece("  " + blocks(trend, trend_width) if trend_width else "", INFO),
    )


def _is_slow(value: float | None, trend: Series) -> bool:
    """Whether a p95 is more than twice the median of its own shown history."""
    known = sorted(sample for sample in trend if sample is not None)
    if value is None or len(known) < _ENOUGH:
        return False
    return value > 2 * known[len(known) // 2] and value > _NOTICEABLE_MS


_ENOUGH: Final = 20
_NOTICEABLE_MS: Final = 5.0


def _rate(value: float | None) -> str:
    return f"{rate(value)}/s" if value is not None else NOTHING


def _percent(ratio: float | None) -> str:
    return f"{ratio * 100:.1f}%" if ratio is not None else NOTHING


def window(state: State) -> str:
    """The window of the percentiles, for the frame."""
    return f"{state.stats.window_s:.0f} s" if state.stats else NOTHING
