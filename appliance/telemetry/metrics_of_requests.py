"""Metrics that gateways count: requests, their tokens and their times."""

from appliance.telemetry.metric import (
    DURATION_BUCKETS,
    STAGE_BUCKETS,
    TOKEN_BUCKETS,
    TPOT_BUCKETS,
    TTFT_BUCKETS,
    Metric,
)

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
    "(last token - first token) / (output tokens - 1), finished requests only.",
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
CACHED_PROMPT_TOKENS = Metric(
    "quarterdeck_cached_prompt_tokens_total",
    "counter",
    "Prompt tokens of ended requests that were not computed.",
    ("model",),
)
PHASE_SECONDS = Metric(
    "quarterdeck_phase_seconds",
    "histogram",
    "Phases of ended requests outside the engine: auth, admission, tokenize, dispatch, stream.",
    ("phase",),
    STAGE_BUCKETS,
)
ITL = Metric(
    "quarterdeck_inter_token_seconds",
    "histogram",
    "Between two tokens of a choice as they leave the gateway; those of one output share its time.",
    ("model",),
    TPOT_BUCKETS,
)
REQUEST_PROMPT_TOKENS = Metric(
    "quarterdeck_request_prompt_tokens",
    "histogram",
    "Prompt tokens of a request.",
    ("model",),
    TOKEN_BUCKETS,
)
REQUEST_COMPLETION_TOKENS = Metric(
    "quarterdeck_request_completion_tokens",
    "histogram",
    "Generated tokens of a request.",
    ("model",),
    TOKEN_BUCKETS,
)
SEND_BLOCKED = Metric(
    "quarterdeck_send_blocked_seconds_total",
    "counter",
    "Time in sends of answers that waited for the client to read.",
)
KEY_REQUESTS = Metric(
    "quarterdeck_key_requests_total",
    "counter",
    "Ended requests by key and outcome; keys are ids, never secrets.",
    ("key", "outcome"),
)
KEY_TOKENS = Metric(
    "quarterdeck_key_tokens_total",
    "counter",
    "Tokens by key and kind: prompt, cached, completion.",
    ("key", "kind"),
)
MODEL_REQUESTS = Metric(
    "quarterdeck_model_requests_total",
    "counter",
    "Ended requests by served name (adapters have their own) and outcome.",
    ("model", "outcome"),
)
SLO_EVENTS = Metric(
    "quarterdeck_slo_events_total",
    "counter",
    "Requests judged by a promise: availability, ttft, tpot; good or bad.",
    ("slo", "outcome"),
)
