"""Bodies of the routes that explain: spans, telemetry, SLOs, logs, audit, profiles."""

from datetime import datetime
from typing import Any, Literal

from pydantic import ConfigDict, Field

from appliance.supervisor.admin.adapter_schemas import Schema

Level = Literal["debug", "info", "warning", "error"]


class Span(Schema):
    """One span of a trace, as `quarterdeck trace ID -o json` prints it."""

    name: str
    kind: Literal["internal", "server", "client", "producer", "consumer"]
    process: str
    start_ns: int
    end_ns: int
    span_id: str
    parent_id: str | None
    attributes: dict[str, Any] = Field(default_factory=dict)
    status: Literal["unset", "ok", "error"] = "unset"
    linked: bool = False
    """It stands in a step's trace and links this request; `parent_id` is where it belongs here."""


class ExportStatus(Schema):
    """How the export of spans goes."""

    endpoint: str
    protocol: Literal["http/protobuf", "grpc"]
    state: Literal["idle", "works", "failing"]
    last_error: str | None = None
    exported: int
    failed: int
    dropped: int
    queued: int


class StageDrops(Schema):
    """Records that one stage of the pipeline lost, cumulative."""

    process: str
    stage: str
    dropped: int


class TelemetrySettings(Schema):
    """`GET /telemetry`: what holds now, and how the pipeline does."""

    recording: bool
    """Hops, steps and request records are made; counts are always."""
    export: bool
    """Spans of kept traces are sent; always false without a collector."""
    trace_ratio: float
    slowest_per_minute: int
    keep_errors: bool
    keep_aborts: bool
    keep_preempted: bool
    keep_slo_breaches: bool
    content: bool
    collector: ExportStatus | None = None
    drops: list[StageDrops] = Field(default_factory=list)
    stored_spans: int | None = None
    """Facts in the trace store that a span is made of."""
    stored_bytes: int | None = None
    oldest_at: datetime | None = None


class ChangeTelemetry(Schema):
    """`PATCH /telemetry`: what is left out stays. Lasts until the appliance ends."""

    model_config = ConfigDict(extra="forbid")

    recording: bool | None = None
    export: bool | None = None
    trace_ratio: float | None = Field(None, ge=0, le=1)
    slowest_per_minute: int | None = Field(None, ge=0, le=1000)
    keep_errors: bool | None = None
    keep_aborts: bool | None = None
    keep_preempted: bool | None = None
    keep_slo_breaches: bool | None = None
    content: bool | None = None
    """Needs the scope `admin`."""


SloName = Literal["availability", "ttft", "tpot"]


class BurnRate(Schema):
    """How fast the error budget goes: 1 uses it up in exactly its window."""

    window: Literal["5m", "30m", "1h", "2h", "6h", "1d", "3d"]
    rate: float | None
    """None: nothing was judged in that time."""


class SloRow(Schema):
    """One promise and how it is kept."""

    name: SloName
    objective: float
    """Share that must be good."""
    threshold_ms: float | None = None
    good: int
    """Over the window."""
    bad: int
    window_days: float = 30.0
    ratio: float | None
    budget_left: float | None
    """Share of the error budget that is left; below 0: the promise is broken."""
    burn: list[BurnRate]
    state: Literal["ok", "burning", "paging", "broken", "unknown"]
    """`burning`: a ticket's burn rate; `paging`: a page's."""


class Evidence(Schema):
    """One fact behind an explanation."""

    text: str
    value: float | None = None
    unit: str | None = None
    cohort_median: float | None = None
    ratio: float | None = None
    """Against the cohort's median."""
    span_id: str | None = None
    """Where it shows in the trace."""


CauseKind = Literal[
    "queue",
    "preemption",
    "long_prefill_beside",
    "cold_prefix",
    "long_prompt",
    "long_output",
    "asleep_engine",
    "engine_start",
    "engine_died",
    "slow_client",
    "detokenizer",
    "collector",
    "grammar",
    "adapter",
    "slow_steps",
    "crowded_batch",
    "wire",
    "tokenizer",
    "admission",
    "failed",
    "not_slow",
    "unknown",
]


class Cause(Schema):
    """What made a request slow, and how sure that is."""

    kind: CauseKind
    text: str
    """One sentence for a person: `waited 2.1 s in the queue, 11x the median of this hour`."""
    cost_ms: float
    """Of the request's time, what it cost beyond the cohort's median."""
    share: float
    """Of the request's excess over its cohort."""
    confidence: Literal["sure", "likely", "weak"]
    advice: str | None = None
    evidence: list[Evidence] = Field(default_factory=list)


class PhaseAgainstCohort(Schema):
    """One phase of the request beside its cohort's."""

    phase: str
    ms: float
    median_ms: float | None = None
    p95_ms: float | None = None
    ratio: float | None = None


class Explanation(Schema):
    """`GET /traces/{id}/explanation`: why a request took as long as it did."""

    request_id: str
    verdict: str
    """One line. It says so when it does not know."""
    causes: list[Cause]
    """Most costly first; empty when the request was not slow."""
    phases: list[PhaseAgainstCohort]
    cohort: str
    """Whom it is compared with: `212 requests of smollm2 in the last hour`."""
    cohort_size: int
    duration_ms: float
    excess_ms: float | None = None
    critical_path: list[str] = Field(default_factory=list)
    """Span ids, first to last."""
    complete: bool = True
    """All that it needs was recorded."""


class MomentRow(Schema):
    """A request that ran at the moment asked for."""

    request_id: str
    outcome: str
    model: str | None
    duration_ms: float
    ttft_ms: float | None
    headline: str


class Moment(Schema):
    """`GET /moment?at=`: what happened around a point in time."""

    since: datetime
    until: datetime
    summary: list[str]
    """Sentences, the most telling first."""
    requests: int
    by_outcome: dict[str, int]
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    hour_ttft_p50_ms: float | None
    slowest: list[MomentRow]
    events: list[dict[str, Any]]
    """Rows as in `GET /events`."""
    engines: dict[str, dict[str, float]]
    """By engine: steps, mean batch, share of time in steps, prefill tokens, preemptions."""


class LogLine(Schema):
    """One line that a process of the appliance wrote."""

    id: int
    at: datetime
    process: str
    epoch: int | None = None
    level: Level
    logger: str | None = None
    text: str
    """One line; control characters are escaped, secrets taken out."""
    trace_id: str | None = None
    request_id: str | None = None
    engine: str | None = None
    exception: str | None = None
    """The traceback, of several lines."""


class AuditEntry(Schema):
    """One call that changed something, or was refused."""

    seq: int
    at: datetime
    actor: str
    """Key id, `local`, or `anonymous` where no valid key was given."""
    scope: str | None
    method: str
    route: str
    """Template."""
    target: str | None
    body_sha256: str | None
    status: int
    operation: str | None = None
    trace_id: str | None = None
    source: str | None = None
    """Address of the caller; None on the unix socket."""
    previous: str
    """Hash of the entry before."""
    hash: str


class AuditCheck(Schema):
    """`GET /audit/verify`: whether the chain is whole."""

    ok: bool
    entries: int
    first_bad_seq: int | None = None
    problem: str | None = None


class ProfileFile(Schema):
    """One file of a profile."""

    name: str
    kind: Literal["torch", "merged", "stacks"]
    num_bytes: int


class ProfileRow(Schema):
    """One profile of an engine."""

    id: str
    engine: str
    epoch: int
    state: Literal["running", "done", "failed"]
    created_at: datetime
    actor: str
    steps: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    files: list[ProfileFile] = Field(default_factory=list)
    error: str | None = None
    operation_id: str | None = None


class StartProfileBody(Schema):
    """`POST /profiles`."""

    model_config = ConfigDict(extra="forbid")

    engine: str
    steps: int | None = Field(None, ge=1, le=200)
    """At most 50 with stacks or memory. None: until `duration_s`, a stop, or as many as may be."""
    duration_s: float = Field(60.0, gt=0, le=600)
    with_stacks: bool = False
    with_memory: bool = False


class StackDump(Schema):
    """`POST /engines/{id}/stacks`: where every thread of an engine is."""

    engine: str
    pid: int
    tool: Literal["py-spy", "faulthandler"]
    text: str


class FlightEvent(Schema):
    """An event in an engine's flight recorder."""

    at: datetime
    kind: str
    text: str


class FlightStep(Schema):
    """A step in an engine's flight recorder; times are milliseconds."""

    step: int
    at: datetime
    finished: bool
    """False: the process ended in this step."""
    stage: str
    """How far it came: `planned`, `built`, `forward`, `sampled`, `done`."""
    took_ms: float | None
    prefill_tokens: int
    decode_tokens: int
    requests: int
    used_blocks: int
    waiting: int
    request_ids: list[str]
    """As many as the record holds."""


class FlightReport(Schema):
    """`GET /engines/{id}/flight`: the last steps and events of an engine, dead or alive."""

    engine: str
    epoch: int
    pid: int | None
    alive: bool
    last_exit: str | None = None
    steps: list[FlightStep]
    """Newest first."""
    events: list[FlightEvent]
    log_tail: list[str] = Field(default_factory=list)
    """The last lines that the process wrote."""
