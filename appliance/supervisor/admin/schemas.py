"""The bodies of the admin REST API and its event stream. Collections are `{"items": [...]}`.

The dashboard and the command line import these and nothing else of the appliance. Times are ISO
8601 in UTC; spans use Unix nanoseconds.
"""

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar, get_args

from pydantic import ConfigDict, Field

from appliance.supervisor.admin.adapter_schemas import AdapterOnEngine as AdapterOnEngine
from appliance.supervisor.admin.adapter_schemas import AdapterRow as AdapterRow
from appliance.supervisor.admin.adapter_schemas import AdapterState as AdapterState
from appliance.supervisor.admin.adapter_schemas import LoadAdapterBody as LoadAdapterBody
from appliance.supervisor.admin.adapter_schemas import Schema as Schema
from appliance.supervisor.admin.insight_schemas import AuditCheck as AuditCheck
from appliance.supervisor.admin.insight_schemas import AuditEntry as AuditEntry
from appliance.supervisor.admin.insight_schemas import BurnRate as BurnRate
from appliance.supervisor.admin.insight_schemas import Cause as Cause
from appliance.supervisor.admin.insight_schemas import CauseKind as CauseKind
from appliance.supervisor.admin.insight_schemas import ChangeTelemetry as ChangeTelemetry
from appliance.supervisor.admin.insight_schemas import Evidence as Evidence
from appliance.supervisor.admin.insight_schemas import Explanation as Explanation
from appliance.supervisor.admin.insight_schemas import ExportStatus as ExportStatus
from appliance.supervisor.admin.insight_schemas import FlightEvent as FlightEvent
from appliance.supervisor.admin.insight_schemas import FlightReport as FlightReport
from appliance.supervisor.admin.insight_schemas import FlightStep as FlightStep
from appliance.supervisor.admin.insight_schemas import LogLine as LogLine
from appliance.supervisor.admin.insight_schemas import Moment as Moment
from appliance.supervisor.admin.insight_schemas import MomentRow as MomentRow
from appliance.supervisor.admin.insight_schemas import PhaseAgainstCohort as PhaseAgainstCohort
from appliance.supervisor.admin.insight_schemas import ProfileFile as ProfileFile
from appliance.supervisor.admin.insight_schemas import ProfileRow as ProfileRow
from appliance.supervisor.admin.insight_schemas import SloName as SloName
from appliance.supervisor.admin.insight_schemas import SloRow as SloRow
from appliance.supervisor.admin.insight_schemas import Span as Span
from appliance.supervisor.admin.insight_schemas import StackDump as StackDump
from appliance.supervisor.admin.insight_schemas import StageDrops as StageDrops
from appliance.supervisor.admin.insight_schemas import StartProfileBody as StartProfileBody
from appliance.supervisor.admin.insight_schemas import TelemetrySettings as TelemetrySettings

ItemT = TypeVar("ItemT")

Scope = Literal["inference", "viewer", "operator", "admin"]
"""Each opens what those before it open; `inference` opens the data plane alone."""
Outcome = Literal["finished", "aborted", "failed", "rejected"]
RequestState = Literal["held", "queued", "prefill", "decode", Outcome]
EngineStateName = Literal[
    "starting",
    "ready",
    "draining",
    "asleep",
    "waking",
    "stopped",
    "backoff",
    "crash_loop",
    "failed",
]


def includes(held: Scope, needed: Scope) -> bool:
    """Whether a key of the scope `held` may do what needs `needed`."""
    ranks = get_args(Scope)
    return ranks.index(held) >= ranks.index(needed)


class Collection(Schema, Generic[ItemT]):
    """Every list answer."""

    items: list[ItemT]


class Problem(Schema):
    """An RFC 9457 problem. `code` is stable; `hint` says what to do."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str | None = None
    instance: str | None = None
    code: str
    hint: str | None = None
    request_id: str | None = None
    current_state: str | None = None
    allowed_actions: list[str] | None = None


class Progress(Schema):
    """How far something is; `unit` is `bytes`, `steps`, `requests`."""

    done: int
    total: int
    unit: str = "bytes"


class EngineRow(Schema):
    """One engine."""

    id: str
    state: EngineStateName
    reason: str | None = None
    phase: str | None = None
    progress: Progress | None = None
    epoch: int
    pid: int | None = None
    model: str
    served_names: list[str] = Field(default_factory=list)
    device: str
    dtype: str | None = None
    kernel_backend: str | None = None
    max_model_len: int | None = None
    sleep_level: int = 0
    desired_sleep_level: int = 0
    resident_bytes: int | None = None
    weights_bytes: int | None = None
    kv_cache_bytes: int | None = None
    running: int = 0
    waiting: int = 0
    kv_used_ratio: float = 0.0
    tokens_per_s: float = 0.0
    steps: int = 0
    restarts: int = 0
    heartbeat_age_s: float | None = None
    since: datetime
    next_restart_at: datetime | None = None
    last_exit: str | None = None
    allowed_actions: list[str] = Field(default_factory=list)
    dtype_reason: str | None = None
    """Why `dtype` is not what was asked for or saved."""
    adapters: list[str] = Field(default_factory=list)
    """LoRA adapters that requests to it may name now."""
    step_parts: dict[str, float] = Field(default_factory=dict)
    """Where the time of its steps went since it started: shares of schedule, build, forward,
    sample and send. Empty before its first step."""
    start_phases: dict[str, float] = Field(default_factory=dict)
    """Seconds of each phase of its start, in order. Empty before it is ready."""
    kernel_path: str | None = None
    """What computes: `torch`, or an instruction set of the CPU kernels."""
    kernel_reason: str | None = None
    quantization: str | None = None
    """How most of the linear layers' weights are kept: `none`, `int8`, `w4`."""
    quantization_reason: str | None = None
    """Why so, and what is known of its price in accuracy."""
    kv_cache_dtype: str | None = None
    weight_cache: str | None = None
    """`hit`: packed weights were mapped from disk; `miss`: packed and kept; `off`."""
    num_threads: int | None = None
    """On a CPU."""
    num_parameters: int | None = None
    """Weights that a token passes: two operations each."""


class GatewayRow(Schema):
    """One gateway."""

    name: str
    epoch: int
    pid: int | None
    state: Literal["starting", "ready", "stopped", "backoff"]
    restarts: int
    live_requests: int = 0


class SleepBody(Schema):
    """`POST /engines/{id}/sleep`."""

    model_config = ConfigDict(extra="forbid")

    level: Literal[1, 2] = 1
    mode: Literal["wait", "abort"] = "wait"
    timeout_s: float = Field(60.0, gt=0, le=3600)


OperationKind = Literal[
    "sleep",
    "wake",
    "restart",
    "reset-prefix-cache",
    "lora.load",
    "lora.unload",
    "lora.pin",
    "lora.unpin",
    "profile",
]


class Operation(Schema):
    """A verb that was asked for, and how it goes."""

    id: str
    kind: OperationKind
    target: str
    state: Literal["queued", "running", "done", "failed", "canceled"]
    phase: str | None = None
    progress: Progress | None = None
    actor: str
    """Key id, `local` (unix socket) or `request:<id>` (a request woke the engine)."""
    trace_id: str
    created_at: datetime
    ended_at: datetime | None = None
    error: str | None = None
    result: dict[str, Any] | None = None


class RequestRow(Schema):
    """One request, live or ended. No text."""

    id: str
    trace_id: str
    state: RequestState
    route: str
    model: str | None = None
    key_id: str | None = None
    engine: str | None = None
    gateway: str
    stream: bool
    status: int | None = None
    error_code: str | None = None
    received_at: datetime
    ended_at: datetime | None = None
    age_s: float
    """So far, or in all."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    max_tokens: int | None = None
    queue_ms: float | None = None
    ttft_ms: float | None = None
    tokens_per_s: float | None = None
    preemptions: int = 0


class AbortAnswer(Schema):
    """`DELETE /requests/{id}`: given only after the engine or gateway confirmed."""

    id: str
    state: Literal["aborted"]
    completion_tokens: int


class TraceRow(Schema):
    """One stored trace in a list."""

    request_id: str
    trace_id: str
    name: str
    outcome: str
    model: str | None
    received_at: datetime
    duration_ms: float
    ttft_ms: float | None
    key_id: str | None = None
    engine: str | None = None
    headline: str = ""


class Trace(Schema):
    """All spans of one request: a single tree, parents before children."""

    request: RequestRow
    headline: str
    """For example `TTFT 412 ms: 61 % queued, 4x the recent median`."""
    spans: list[Span]
    complete: bool
    """Every message of the request has both halves."""


class Percentiles(Schema):
    """Over the window, milliseconds; None without samples."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class Stats(Schema):
    """One coalesced frame: what the dashboard draws."""

    at: datetime
    window_s: float
    running: int
    waiting: int
    held: int
    requests_per_s: float
    prompt_tokens_per_s: float
    generation_tokens_per_s: float
    error_ratio: float
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    queue_ms: Percentiles
    e2e_ms: Percentiles
    received: int
    rejected: int
    finished: int
    aborted: int
    failed: int
    dropped_records: int
    slos: list[SloRow] = Field(default_factory=list)


class JournalEvent(Schema):
    """One entry of the event journal."""

    id: int
    at: datetime
    kind: str
    """`engine.ready`, `engine.died`, `gateway.started`, `operation.done`, `key.created`, ..."""
    level: Literal["info", "warning", "error"]
    subject: str
    text: str


class Snapshot(Schema):
    """First event of the stream.

    Deltas follow: `engine`, `adapter`, `request`, `operation`, `stats`, `event`.
    """

    engines: list[EngineRow]
    gateways: list[GatewayRow]
    requests: list[RequestRow]
    operations: list[Operation]
    stats: Stats
    events: list[JournalEvent]
    adapters: list[AdapterRow] = Field(default_factory=list)


class KeyRow(Schema):
    """A key, never its secret."""

    id: str
    name: str
    scope: Scope
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    source: Literal["store", "configuration"] = "store"
    allows_content: bool = False
    """Prompts and outputs of its requests may be recorded while that is switched on."""


class CreateKey(Schema):
    """`POST /keys`."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field("", max_length=64, pattern=r"^[A-Za-z0-9 ._@-]*$")
    scope: Scope = "inference"
    expires_in_s: float | None = Field(None, gt=0)
    allows_content: bool = False


class CreatedKey(KeyRow):
    """The one answer that holds the secret."""

    secret: str


class SystemInfo(Schema):
    """`GET /system`."""

    version: str
    pid: int
    started_at: datetime
    state_dir: str
    run_dir: str
    data_plane: str
    control_plane: str
    data_socket: str
    admin_socket: str
    on_asleep: str
    adapter_roots: list[str] = Field(default_factory=list)
    """Directories that adapters may be loaded from."""


class WhoAmI(Schema):
    """`GET /whoami`: as whom the appliance sees the caller."""

    actor: str
    """Key id, or `local` on the unix socket."""
    scope: Scope
    transport: Literal["tcp", "unix"]
    key: KeyRow | None = None


class Index(Schema):
    """`GET /admin/v1/`."""

    name: str
    version: str
    links: dict[str, str]
