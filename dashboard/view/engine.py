"""One engine: what it holds, how it does, and its last steps from the flight recorder."""

from typing import Final

from appliance.supervisor.admin.schemas import EngineRow, FlightReport, FlightStep
from dashboard.store.state import State
from dashboard.view.chart import blocks
from dashboard.view.fleet import KV_HIGH, state_of
from dashboard.view.lines import (
    BAD,
    DIM,
    INFO,
    PLAIN,
    REST,
    WARN,
    Column,
    Line,
    Piece,
    Row,
    cells,
    header,
    line,
    pick,
)
from dashboard.view.text import (
    NOTHING,
    age,
    clean,
    clock,
    count,
    meter,
    milliseconds,
    restarts,
    short_id,
    size,
)

_LABEL: Final = 10
_TENTH: Final = 0.1
_COLUMNS: Final = (
    Column("STEP", 8, right=True),
    Column("AT", 8, rank=2),
    Column("TOOK", 7, right=True),
    Column("", 10, rank=3),
    Column("BATCH", 5, right=True),
    Column("PREFILL", 7, right=True),
    Column("DECODE", 6, right=True),
    Column("BLOCKS", 6, right=True),
    Column("WAIT", 4, right=True),
    Column("STAGE", 9),
    Column("REQUESTS", 12),
)


def engine_lines(state: State, engine: EngineRow, now_s: float, width: int) -> list[Line]:
    """Facts, a line each."""
    since_s = (state.server_now(now_s) - engine.since).total_seconds()
    device = f"{clean(engine.device)} {clean(engine.dtype or NOTHING)}"
    lines = [
        _fact(
            "state",
            state_of(engine),
            f" for {age(since_s)}  epoch {engine.epoch}  pid {engine.pid or NOTHING}",
            Piece(restarts(engine.restarts), WARN),
        ),
        _fact("model", f"{clean(engine.model)}  ", Piece(device, DIM)),
        _fact("kernels", *_kernels(engine)),
        _fact("load", *_load(engine)),
        _fact("KV cache", *_kv(engine, width)),
        _fact("memory", _memory(engine)),
    ]
    if engine.step_parts:
        lines.append(_fact("step time", *_step_time(engine)))
    if engine.start_phases:
        lines.append(_fact("start", _start_time(engine)))
    return [*lines, *_notes(engine)]


def _fact(name: str, *pieces: Piece | str) -> Line:
    return line(Piece(f" {name:<{_LABEL}}", DIM), *pieces)


def _kernels(engine: EngineRow) -> tuple[Piece | str, ...]:
    """What computes, and how weights and keys are kept."""
    is_slow = engine.kernel_backend == "reference" and engine.device == "cpu"
    threads = f" on {engine.num_threads} threads" if engine.num_threads else ""
    path = clean(engine.kernel_path or engine.kernel_backend or NOTHING)
    weights, keys = engine.quantization or NOTHING, engine.kv_cache_dtype or NOTHING
    return (
        Piece(path, WARN if is_slow else PLAIN),
        threads,
        Piece(f"  weights {clean(weights)}  KV {clean(keys)}", DIM),
    )


def _load(engine: EngineRow) -> tuple[Piece | str, ...]:
    beat = engine.heartbeat_age_s
    return (
        f"{engine.running} running  ",
        Piece(f"{engine.waiting} waiting", WARN if engine.waiting else PLAIN),
        f"  {engine.tokens_per_s:.1f} tok/s  step {engine.steps}",
        Piece(f"  heartbeat {age(beat)}" if beat is not None else "", DIM),
    )


def _kv(engine: EngineRow, width: int) -> tuple[Piece, ...]:
    high = engine.kv_used_ratio >= KV_HIGH
    bar = meter(engine.kv_used_ratio, max(8, min(40, width - 40)))
    return (
        Piece(f"{engine.kv_used_ratio * 100:3.0f}%{'▲' if high else ' '}", BAD if high else PLAIN),
        Piece(bar, REST),
        Piece(f" of {size(engine.kv_cache_bytes)}", DIM),
    )


def _memory(engine: EngineRow) -> str:
    weights, cache = size(engine.weights_bytes), size(engine.kv_cache_bytes)
    return f"{size(engine.resident_bytes)} resident  weights {weights}  KV cache {cache}"


def _step_time(engine: EngineRow) -> list[Piece]:
    """Where the time of its steps went; the largest part stands out."""
    most = max(engine.step_parts.values())
    return [
        Piece(f"{clean(name)} {share * 100:.{0 if share >= _TENTH else 1}f}%  ", tone)
        for name, share in engine.step_parts.items()
        for tone in (PLAIN if share == most else DIM,)
    ]


def _start_time(engine: EngineRow) -> str:
    took = engine.start_phases
    parts = [f"{clean(name)} {age(took_s)}" for name, took_s in took.items() if took_s >= _TENTH]
    return "  ".join([*parts, f"in all {age(sum(took.values()))}"])


def _notes(engine: EngineRow) -> list[Line]:
    """What is not as usual."""
    notes: list[tuple[str, str, str]] = []
    if engine.phase and engine.state != "ready":
        notes.append(("start", _phase(engine), INFO))
    if engine.reason:
        notes.append(("reason", clean(engine.reason), WARN))
    if engine.last_exit and engine.last_exit != engine.reason:
        notes.append(("last exit", clean(engine.last_exit), WARN))
    if engine.dtype_reason:
        notes.append(("type", clean(engine.dtype_reason), DIM))
    if engine.kernel_backend == "reference" and engine.kernel_reason:
        notes.append(("why slow", clean(engine.kernel_reason), WARN))
    if engine.adapters:
        notes.append(("adapters", ", ".join(clean(name) for name in engine.adapters), PLAIN))
    return [_fact(name, Piece(text, tone)) for name, text, tone in notes]


def _phase(engine: EngineRow) -> str:
    progress = engine.progress
    if progress is None or not progress.total:
        return clean(engine.phase or "")
    ratio = progress.done / progress.total
    return f"{clean(engine.phase or '')} {ratio * 100:.0f}% {meter(ratio, 20)}"


def flight_title(report: FlightReport) -> str:
    """For the frame: whose record it is."""
    alive = "alive" if report.alive else f"dead: {clean(report.last_exit or 'unknown end')}"
    return f"last steps · epoch {report.epoch} · {alive}"


def flight_summary(report: FlightReport, width: int) -> Line:
    """Median and longest step, mean batch, and how the steps went."""
    times = [step.took_ms for step in report.steps if step.took_ms is not None]
    if not times:
        return line(Piece(" no step is recorded yet", DIM))
    ordered = sorted(times)
    batch = sum(step.requests for step in report.steps) / len(report.steps)
    text = (
        f" median {milliseconds(ordered[len(ordered) // 2])}"
        f"  longest {milliseconds(ordered[-1])}  batch {batch:.1f}  "
    )
    newest_last = [step.took_ms for step in reversed(report.steps)]
    return line(text, Piece(blocks(newest_last, max(0, min(64, width - len(text) - 1))), INFO))


def steps_header(width: int) -> Line:
    """Titles of the steps."""
    return line(" ", *header(pick(_COLUMNS, width)))


def step_rows(report: FlightReport, width: int) -> list[Row]:
    """Newest first; a step that the process ended in stands out."""
    columns = pick(_COLUMNS, width)
    longest = max((step.took_ms or 0.0 for step in report.steps), default=0.0) or 1.0
    rows: list[Row] = []
    for step in report.steps:
        values = _step(step, longest, _stage(step, alive=report.alive))
        text = cells(columns, [values[column.title] for column in columns])
        rows.append(Row(f"step:{step.step}", text))
    return rows


def _stage(step: FlightStep, *, alive: bool) -> Piece:
    """How far the step came: a dead engine's last one is where it ended."""
    if step.finished:
        return Piece(clean(step.stage))
    if alive:
        return Piece(f"▶ {clean(step.stage)}", INFO)
    return Piece(f"✗ {clean(step.stage)}", BAD)


def _step(step: FlightStep, longest_ms: float, stage: Piece) -> dict[str, Piece]:
    tone = stage.tone
    took = NOTHING if step.took_ms is None else milliseconds(step.took_ms)
    return {
        "STEP": Piece(str(step.step), tone),
        "AT": Piece(clock(step.at), DIM),
        "TOOK": Piece(took, tone),
        "": Piece(meter((step.took_ms or 0.0) / longest_ms, 10), INFO),
        "BATCH": Piece(str(step.requests)),
        "PREFILL": Piece(count(step.prefill_tokens), "magenta" if step.prefill_tokens else DIM),
        "DECODE": Piece(count(step.decode_tokens)),
        "BLOCKS": Piece(count(step.used_blocks), DIM),
        "WAIT": Piece(str(step.waiting), WARN if step.waiting else DIM),
        "STAGE": stage,
        "REQUESTS": Piece(" ".join(short_id(name) for name in step.request_ids), DIM),
    }


def flight_events(report: FlightReport, height: int) -> list[Line]:
    """The newest events, newest last; of a dead engine also what the process wrote last."""
    lines = [
        line(
            Piece(f" {clock(event.at)} ", DIM),
            Piece(f"{clean(event.kind)} ", INFO),
            clean(event.text),
        )
        for event in reversed(report.events)
    ]
    if not report.alive:
        lines += [line(Piece(f" {clean(text)}", DIM)) for text in report.log_tail]
    return lines[-height:] if height > 0 else []
