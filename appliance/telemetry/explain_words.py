"""How explanations say things: times, multiples, counts."""

from appliance.supervisor.admin.insight_schemas import Evidence

NS_PER_MS = 1e6
MS_PER_S = 1000
TELLING_RATIO = 1.5
"""Smaller multiples of a median are not worth a word."""
MAX_RATIO = 1000.0


def time_text(value_ns: float) -> str:
    """Return a time as `412 ms`, `2.1 s` or `0.3 ms`."""
    value_ms = value_ns / NS_PER_MS
    if value_ms >= MS_PER_S:
        return f"{value_ms / MS_PER_S:.1f} s"
    return f"{value_ms:.0f} ms" if value_ms >= 1 else f"{value_ms:.1f} ms"


def against_text(value_ns: float, usual_ns: float | None) -> str:
    """Return `, 11x the median of this hour`, or nothing where that says nothing."""
    if not usual_ns or value_ns / usual_ns < TELLING_RATIO:
        return ""
    ratio = value_ns / usual_ns
    if ratio > MAX_RATIO:
        return f", usually {time_text(usual_ns)}"
    return f", {ratio:.1f}".removesuffix(".0") + "x the median of this hour"


def count_text(count: int, one: str) -> str:
    """Return `1 step`, `3 steps`."""
    return f"{count:,} {one}" + ("" if count == 1 else "s")


def figure(
    text: str, value_ns: float, usual_ns: float | None = None, span_id: str | None = None
) -> Evidence:
    """Return a measured time as evidence."""
    return Evidence(
        text=text,
        value=round(value_ns / NS_PER_MS, 3),
        unit="ms",
        cohort_median=None if usual_ns is None else round(usual_ns / NS_PER_MS, 3),
        ratio=round(value_ns / usual_ns, 2) if usual_ns else None,
        span_id=span_id,
    )


def amount(
    text: str,
    value: float,
    unit: str,
    usual: float | None = None,
    span_id: str | None = None,
) -> Evidence:
    """Return a count as evidence."""
    return Evidence(
        text=text,
        value=value,
        unit=unit,
        cohort_median=usual,
        ratio=round(value / usual, 2) if usual else None,
        span_id=span_id,
    )
