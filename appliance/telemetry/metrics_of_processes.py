"""Metrics of every process, of the messages between them, and of the telemetry itself."""

from appliance.telemetry.metric import HOP_BUCKETS, RPC_BUCKETS, Metric
from engine.wire.stats import LAG_EDGES

HOP = Metric(
    "quarterdeck_hop_seconds",
    "histogram",
    "From a message's send to its arrival at the other process.",
    ("message",),
    HOP_BUCKETS,
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
PROCESS_CPU = Metric(
    "quarterdeck_process_cpu_seconds_total",
    "counter",
    "CPU time by mode: user, system.",
    ("process", "mode"),
)
PROCESS_RESIDENT = Metric(
    "quarterdeck_process_resident_bytes", "gauge", "Resident memory.", ("process",)
)
PROCESS_FDS = Metric(
    "quarterdeck_process_open_fds", "gauge", "Open file descriptors.", ("process",)
)
PROCESS_MAX_FDS = Metric(
    "quarterdeck_process_max_fds", "gauge", "File descriptors that may be open.", ("process",)
)
PROCESS_THREADS = Metric("quarterdeck_process_threads", "gauge", "Threads.", ("process",))
GC_PAUSES = Metric("quarterdeck_gc_pauses_total", "counter", "Garbage collections.", ("process",))
GC_SECONDS = Metric(
    "quarterdeck_gc_seconds_total",
    "counter",
    "Time that garbage collections held the process up.",
    ("process",),
)
GC_MAX = Metric(
    "quarterdeck_gc_max_seconds",
    "gauge",
    "Longest garbage collection since the start.",
    ("process",),
)
LOOP_LAG = Metric(
    "quarterdeck_loop_lag_seconds",
    "histogram",
    "How late timers of an event loop fired.",
    ("process",),
    LAG_EDGES,
)
QUEUE_DEPTH = Metric(
    "quarterdeck_queue_depth",
    "gauge",
    "Entries of a bounded queue: inbox, outbox, records, join, assembly, export, trace_store.",
    ("process", "queue"),
)
RPC_DURATION = Metric(
    "quarterdeck_rpc_duration_seconds",
    "histogram",
    "Utility calls from their send to the end of their reply.",
    ("method",),
    RPC_BUCKETS,
)
OPERATIONS = Metric(
    "quarterdeck_operations_total",
    "counter",
    "Ended operations by kind and outcome.",
    ("kind", "outcome"),
)
ADMIN_RESPONSES = Metric(
    "quarterdeck_admin_responses_total",
    "counter",
    "Answers of the control plane by route and status.",
    ("route", "status"),
)
AUDIT_ENTRIES = Metric(
    "quarterdeck_audit_entries_total",
    "counter",
    "Entries of the audit log: written, lost.",
    ("outcome",),
)
LOG_LINES = Metric(
    "quarterdeck_log_lines_total",
    "counter",
    "Lines that processes wrote, by level.",
    ("process", "level"),
)
TRACES_KEPT = Metric(
    "quarterdeck_traces_kept_total",
    "counter",
    "Request traces that were exported, by reason.",
    ("reason",),
)
TRACE_STORE_BYTES = Metric(
    "quarterdeck_trace_store_bytes", "gauge", "Size of the local trace store."
)
EXPORT_FAILING = Metric(
    "quarterdeck_export_failing", "gauge", "1 while the collector refuses spans."
)
SLO_OBJECTIVE = Metric(
    "quarterdeck_slo_objective_ratio", "gauge", "Share of good requests that is promised.", ("slo",)
)
SLO_THRESHOLD = Metric(
    "quarterdeck_slo_threshold_seconds", "gauge", "Limit of a latency promise.", ("slo",)
)
SLO_BURN = Metric(
    "quarterdeck_slo_burn_rate",
    "gauge",
    "How fast the error budget goes; 1 uses it up in its window.",
    ("slo", "window"),
)
SLO_BUDGET = Metric(
    "quarterdeck_slo_budget_left_ratio",
    "gauge",
    "Share of the error budget of 30 days that is left.",
    ("slo",),
)
BUILD_INFO = Metric("quarterdeck_build_info", "gauge", "1, with the version.", ("version",))
START_TIME = Metric(
    "quarterdeck_start_time_seconds", "gauge", "Unix time at which the appliance started."
)
