"""Every telemetry name in one place: metrics, their labels and buckets, span names, attributes.

Sources: OpenTelemetry semantic conventions for GenAI, messaging, RPC and HTTP
(https://github.com/open-telemetry/semantic-conventions, v1.44). No colon in a metric name: it is
reserved for recording rules. Label values are closed sets with `other`.
"""

from dataclasses import dataclass
from typing import Final, Literal

TTFT_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
TPOT_BUCKETS: Final = (
    0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
    0.75, 1.0, 2.5,
)  # fmt: skip
DURATION_BUCKETS: Final = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
)  # fmt: skip
STAGE_BUCKETS: Final = (
    0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0,
)  # fmt: skip
HOP_BUCKETS: Final = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


# Accounts of a gateway. What was received was rejected or accepted; what was accepted is running,
# finished, aborted or failed.
REQUESTS_RECEIVED = Metric(
    "quarterdeck_requests_received_total",
    "counter",
    "Requests that reached a generating route.",
    ("route",),
)
REQUESTS_REJECTED = Metric(
    "quarterdeck_requests_rejected_total",
    "counter",
    "Requests refused before they were accepted.",
    ("route", "code"),
)
REQUESTS_ACCEPTED = Metric(
    "quarterdeck_requests_accepted_total", "counter", "Requests that passed admission.", ("route",)
)
REQUESTS_ENDED = Metric(
    "quarterdeck_requests_ended_total",
    "counter",
    "Accepted requests that ended, by outcome: finished, aborted, failed.",
    ("route", "outcome"),
)
REQUESTS_RUNNING = Metric(
    "quarterdeck_requests_running", "gauge", "Accepted requests that have not ended.", ("route",)
)
REQUESTS_REQUEUED = Metric(
    "quarterdeck_requests_requeued_total",
    "counter",
    "Requests sent again because their engine died before the first token.",
)
HTTP_RESPONSES = Metric(
    "quarterdeck_http_responses_total",
    "counter",
    "Answers of the data plane by route and status.",
    ("route", "status"),
)
PROMPT_TOKENS = Metric(
    "quarterdeck_prompt_tokens_total", "counter", "Prompt tokens of ended requests.", ("model",)
)
COMPLETION_TOKENS = Metric(
    "quarterdeck_completion_tokens_total",
    "counter",
    "Generated tokens of ended requests.",
    ("model",),
)
IGNORED_PARAMETERS = Metric(
    "quarterdeck_ignored_parameters_total",
    "counter",
    "Requests with unknown fields that were ignored.",
)
TTFT = Metric(
    "quarterdeck_time_to_first_token_seconds",
    "histogram",
    "From the request's arrival to its first token leaving.",
    ("model",),
    TTFT_BUCKETS,
)
TPOT = Metric(
    "quarterdeck_time_per_output_token_seconds",
    "histogram",
    "(duration - time to first token) / (output tokens - 1), finished requests only.",
    ("model",),
    TPOT_BUCKETS,
)
E2E = Metric(
    "quarterdeck_request_duration_seconds",
    "histogram",
    "From the request's arrival to its last byte.",
    ("model", "outcome"),
    DURATION_BUCKETS,
)
QUEUE = Metric(
    "quarterdeck_queue_seconds",
    "histogram",
    "Waiting in the engine for the first step.",
    ("model",),
    STAGE_BUCKETS,
)
PREFILL = Metric(
    "quarterdeck_prefill_seconds",
    "histogram",
    "From the first step to the first token.",
    ("model",),
    STAGE_BUCKETS,
)
DECODE = Metric(
    "quarterdeck_decode_seconds",
    "histogram",
    "From the first to the last token.",
    ("model",),
    DURATION_BUCKETS,
)
MESSAGES_SENT = Metric(
    "quarterdeck_messages_sent_total",
    "counter",
    "Messages that a process's sockets took.",
    ("process", "message"),
)
MESSAGES_RECEIVED = Metric(
    "quarterdeck_messages_received_total",
    "counter",
    "Messages that a process's sockets gave.",
    ("process", "message"),
)
MESSAGES_FENCED = Metric(
    "quarterdeck_messages_fenced_total",
    "counter",
    "Messages of another epoch, dropped.",
    ("process",),
)
MESSAGES_UNDECODABLE = Metric(
    "quarterdeck_messages_undecodable_total",
    "counter",
    "Frames that were not a message, dropped.",
    ("process",),
)
RECORDS_DROPPED = Metric(
    "quarterdeck_records_dropped_total",
    "counter",
    "Trace records lost to a full buffer, by stage.",
    ("process", "stage"),
)
# made by the hub
HOP = Metric(
    "quarterdeck_hop_seconds",
    "histogram",
    "From a message's send to its arrival at the other process.",
    ("message",),
    HOP_BUCKETS,
)
ENGINE_STATE = Metric(
    "quarterdeck_engine_state",
    "gauge",
    "1 for the state that the engine is in.",
    ("engine", "state"),
)
ENGINE_INFO = Metric(
    "quarterdeck_engine_info",
    "gauge",
    "1, with the engine's model: join it to the engine's other metrics.",
    ("engine", "model"),
)
ENGINE_RESTARTS = Metric(
    "quarterdeck_engine_restarts_total", "counter", "Restarts of an engine.", ("engine",)
)
HEARTBEAT_AGE = Metric(
    "quarterdeck_engine_heartbeat_age_seconds",
    "gauge",
    "Since the last tick of the engine's loop.",
    ("engine",),
)
ENGINE_RUNNING = Metric(
    "quarterdeck_engine_running_requests", "gauge", "Requests in the batch.", ("engine",)
)
ENGINE_WAITING = Metric(
    "quarterdeck_engine_waiting_requests", "gauge", "Requests without KV blocks.", ("engine",)
)
KV_USED_RATIO = Metric(
    "quarterdeck_kv_cache_used_ratio", "gauge", "Share of KV blocks in use.", ("engine",)
)
ENGINE_RESIDENT = Metric(
    "quarterdeck_engine_resident_bytes", "gauge", "Memory of the engine.", ("engine",)
)
ENGINE_STEPS = Metric("quarterdeck_engine_steps_total", "counter", "Scheduler steps.", ("engine",))
ENGINE_STEP_SECONDS = Metric(
    "quarterdeck_engine_step_seconds_total", "counter", "Time inside steps.", ("engine",)
)
ENGINE_PREEMPTIONS = Metric(
    "quarterdeck_engine_preemptions_total", "counter", "Preempted requests.", ("engine",)
)
ENGINE_PROMPT_TOKENS = Metric(
    "quarterdeck_engine_prompt_tokens_total", "counter", "Prompt tokens computed.", ("engine",)
)
ENGINE_GENERATION_TOKENS = Metric(
    "quarterdeck_engine_generation_tokens_total", "counter", "Tokens generated.", ("engine",)
)
ENGINE_PREFIX_QUERIED = Metric(
    "quarterdeck_engine_prefix_queried_tokens_total",
    "counter",
    "Prompt tokens looked up in the prefix cache.",
    ("engine",),
)
ENGINE_CACHED_TOKENS = Metric(
    "quarterdeck_engine_prefix_cached_tokens_total",
    "counter",
    "Prompt tokens that the prefix cache had.",
    ("engine",),
)
ENGINE_CACHED_BLOCKS = Metric(
    "quarterdeck_engine_prefix_cached_blocks",
    "gauge",
    "Free KV blocks whose content may be reused.",
    ("engine",),
)
ENGINE_EVICTED_BLOCKS = Metric(
    "quarterdeck_engine_prefix_evicted_blocks_total",
    "counter",
    "Cached KV blocks given to something else.",
    ("engine",),
)
ENGINE_DRAFTED_TOKENS = Metric(
    "quarterdeck_engine_drafted_tokens_total",
    "counter",
    "Tokens guessed by speculative decoding.",
    ("engine",),
)
ENGINE_ACCEPTED_TOKENS = Metric(
    "quarterdeck_engine_accepted_tokens_total", "counter", "Guesses that were right.", ("engine",)
)
ENGINE_GRAMMARS = Metric(
    "quarterdeck_engine_grammars_total",
    "counter",
    "Grammars by outcome: compiled, refused.",
    ("engine", "outcome"),
)
ENGINE_ADAPTERS = Metric(
    "quarterdeck_engine_adapters",
    "gauge",
    "LoRA adapters by place: loaded, active (in a slot).",
    ("engine", "place"),
)
ENGINE_LENGTH_PREDICTIONS = Metric(
    "quarterdeck_engine_length_predictions_total",
    "counter",
    "Ended requests whose output length had been predicted.",
    ("engine",),
)
ENGINE_LENGTH_ERROR = Metric(
    "quarterdeck_engine_length_error_tokens_total",
    "counter",
    "Sum of the absolute errors of these predictions.",
    ("engine",),
)
GATEWAY_RESTARTS = Metric(
    "quarterdeck_gateway_restarts_total", "counter", "Restarts of a gateway.", ("gateway",)
)
SPANS_EXPORTED = Metric(
    "quarterdeck_spans_exported_total", "counter", "Spans that the OTLP endpoint took."
)
SPANS_FAILED = Metric(
    "quarterdeck_spans_export_failed_total", "counter", "Spans that it did not take."
)

METRICS: Final = {
    metric.name: metric for metric in tuple(globals().values()) if isinstance(metric, Metric)
}
"""Every metric by name; stands below them all, so that a new one cannot be forgotten."""

# --------------------------------------------------------------------- spans

SERVICE_NAME: Final = "quarterdeck"
MESSAGING_SYSTEM: Final = "zeromq"
PROVIDER: Final = "quarterdeck"
"""`gen_ai.provider.name`."""

PHASES: Final = (
    "auth",
    "admission",
    "tokenize",
    "dispatch",
    "queue",
    "prefill",
    "decode",
    "stream",
)
"""Span names of a request's phases in time order; each carries `PHASE` with its name."""

PROCESS: Final = "quarterdeck.process"
PHASE: Final = "quarterdeck.phase"
REQUEST_ID: Final = "quarterdeck.request.id"
ENGINE_REQUEST_ID: Final = "quarterdeck.engine_request.id"
ENGINE_ID: Final = "quarterdeck.engine.id"
ENGINE_EPOCH: Final = "quarterdeck.engine.epoch"
STEP: Final = "quarterdeck.step"
OUTCOME: Final = "quarterdeck.outcome"
HOP_TRANSIT: Final = "quarterdeck.hop.transit_ns"
"""From the sender's stamp to the receiver's."""
HOP_QUEUED: Final = "quarterdeck.hop.queued_ns"
"""From the receiver's stamp to its logic taking the message."""
HOP_OUTCOME: Final = "quarterdeck.hop.outcome"
ERROR_TYPE: Final = "error.type"
