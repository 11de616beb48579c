"""Statistics of the invented fleet."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from appliance.supervisor.admin.schemas import EngineRow, Percentiles, RequestRow, Stats
from dashboard.source.demo_slo import slo_rows

WINDOW_S: Final = 60.0


def percentiles(values: Iterable[float | None]) -> Percentiles:
    """Percentiles of the known values."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return Percentiles()

    def at(share: float) -> float:
        return round(known[min(len(known) - 1, int(len(known) * share))], 2)

    return Percentiles(p50=at(0.5), p95=at(0.95), p99=at(0.99))


def stats_frame(
    at: datetime,
    live: Sequence[RequestRow],
    ended: Sequence[RequestRow],
    engines: Sequence[EngineRow],
) -> Stats:
    """Return the frame of this moment."""
    since = at - timedelta(seconds=WINDOW_S)
    recent = [row for row in ended if row.ended_at and row.ended_at > since]
    failed = sum(row.state == "failed" for row in recent)
    fresh = [row for row in (*live, *ended) if (at - row.received_at).total_seconds() < _FRESH_S]
    return Stats(
        at=at,
        window_s=WINDOW_S,
        running=sum(engine.running for engine in engines),
        waiting=sum(engine.waiting for engine in engines),
        held=0,
        requests_per_s=len(fresh) / _FRESH_S,
        prompt_tokens_per_s=sum(row.prompt_tokens for row in fresh) / _FRESH_S,
        generation_tokens_per_s=sum(engine.tokens_per_s for engine in engines),
        error_ratio=failed / len(recent) if recent else 0.0,
        ttft_ms=percentiles(row.ttft_ms for row in recent),
        tpot_ms=percentiles(1000 / row.tokens_per_s for row in recent if row.tokens_per_s),
        queue_ms=percentiles(row.queue_ms for row in recent),
        e2e_ms=percentiles(row.age_s * 1000 for row in recent if row.state == "finished"),
        received=len(live) + len(ended),
        rejected=0,
        finished=sum(row.state == "finished" for row in ended),
        aborted=sum(row.state == "aborted" for row in ended),
        failed=sum(row.state == "failed" for row in ended),
        dropped_records=0,
        slos=slo_rows(recent, ended),
    )


_FRESH_S: Final = 5.0
