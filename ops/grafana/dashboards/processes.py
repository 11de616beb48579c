"""Every process, the messages between them, and the telemetry itself."""

from ops.grafana.board import Board
from ops.grafana.panels import HERE, PROCESS, RANGE, Panel, Query, Row


def _by(metric: str, *labels: str, where: str = PROCESS) -> Query:
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    return Query(f"sum by ({', '.join(labels)}) (rate({metric}{where}{RANGE}))", legend)


COST = Row(
    "What processes cost",
    (
        Panel(
            "CPU",
            "Cores that each process uses.",
            "An idle process that uses CPU: `quarterdeck profile ENGINE --stacks`. All cores used "
            "up: everything waits; see loop lag.",
            (_by("quarterdeck_process_cpu_seconds_total", "process", "mode"),),
            "none",
            kind="stack",
            width=6,
        ),
        Panel(
            "Memory",
            "Resident memory by process.",
            "Gateways and the supervisor should stay flat; growth for hours is a leak.",
            (Query(f"quarterdeck_process_resident_bytes{PROCESS}", "{{process}}"),),
            "bytes",
            width=6,
        ),
        Panel(
            "File descriptors",
            "Share of the file descriptors that may be open.",
            "Above 0.8: connections will be refused; raise `ulimit -n`, or find who keeps them.",
            (
                Query(
                    f"quarterdeck_process_open_fds{PROCESS} / quarterdeck_process_max_fds{PROCESS}",
                    "{{process}}",
                ),
            ),
            "percentunit",
            width=6,
        ),
        Panel(
            "Threads",
            "Threads by process.",
            "It only grows: a leak.",
            (Query(f"quarterdeck_process_threads{PROCESS}", "{{process}}"),),
            "none",
            width=6,
        ),
        Panel(
            "Loop lag",
            "How late timers of an event loop fire, 99th percentile.",
            "Above 0.1 s: the process has no CPU, or something blocks its loop. For gateways: more "
            "of them.",
            (
                Query(
                    "histogram_quantile(0.99, sum by (process, le) "
                    f"(rate(quarterdeck_loop_lag_seconds_bucket{PROCESS}{RANGE})))",
                    "{{process}}",
                ),
            ),
            "s",
            width=6,
        ),
        Panel(
            "Garbage collection",
            "Share of time that garbage collections hold a process up.",
            "Above 0.02: many objects; it shows as jitter in the time per token.",
            (_by("quarterdeck_gc_seconds_total", "process"),),
            "percentunit",
            width=6,
        ),
        Panel(
            "Garbage collections",
            "Collections per second.",
            "See the share of time beside; the number alone is no fault.",
            (_by("quarterdeck_gc_pauses_total", "process"),),
            "ops",
            width=6,
        ),
        Panel(
            "Longest garbage collection",
            "The longest pause since the process started.",
            "Longer than a step: a request was held up by it at least once.",
            (Query(f"quarterdeck_gc_max_seconds{PROCESS}", "{{process}}"),),
            "s",
            width=6,
        ),
    ),
)

MESSAGES = Row(
    "ZMQ",
    (
        Panel(
            "Messages sent",
            "Messages per second that a process's sockets took.",
            "`AddRequest` without `EngineOutputs`: the engine does not answer.",
            (_by("quarterdeck_messages_sent_total", "process", "message"),),
            "ops",
        ),
        Panel(
            "Messages received",
            "Messages per second that a process's sockets gave.",
            "Less than was sent, for long: a queue grows; see below.",
            (_by("quarterdeck_messages_received_total", "process", "message"),),
            "ops",
        ),
        Panel(
            "Dropped messages",
            "Messages of another epoch (after a restart: normal), and frames that were no message.",
            "Undecodable ones: processes of different versions, or a foreign sender.",
            (
                Query(
                    f"sum by (process) (rate(quarterdeck_messages_fenced_total{PROCESS}{RANGE}))",
                    "{{process}} of another epoch",
                ),
                Query(
                    "sum by (process) (rate(quarterdeck_messages_undecodable_total"
                    f"{PROCESS}{RANGE}))",
                    "{{process}} undecodable",
                ),
            ),
            "ops",
        ),
        Panel(
            "Queue depths",
            "Entries of bounded queues: mail to and from sockets, records, spans, the trace store.",
            "`outbox`: a receiver does not read. `export`: a slow collector. `trace_store`: a slow "
            "disk. Full ones drop, and count it.",
            (Query(f"quarterdeck_queue_depth{PROCESS}", "{{process}} {{queue}}"),),
            "none",
        ),
        Panel(
            "From process to process",
            "From a message's send to its arrival, median and 99th percentile.",
            "Milliseconds: the receiver has no CPU.",
            tuple(
                Query(
                    f"histogram_quantile({quantile}, sum by (message, le) "
                    f"(rate(quarterdeck_hop_seconds_bucket{HERE}{RANGE})))",
                    f"{{{{message}}}} {name}",
                )
                for quantile, name in ((0.5, "p50"), (0.99, "p99"))
            ),
            "s",
        ),
        Panel(
            "Calls to engines",
            "Sleep, wake, adapters, profiles, pings: from the send to the reply, 95th percentile.",
            "`Ping` in seconds: steps are long, or the engine hangs.",
            (
                Query(
                    "histogram_quantile(0.95, sum by (method, le) "
                    f"(rate(quarterdeck_rpc_duration_seconds_bucket{HERE}{RANGE})))",
                    "{{method}}",
                ),
            ),
            "s",
        ),
    ),
)

TELEMETRY = Row(
    "Telemetry and control",
    (
        Panel(
            "Records lost",
            "Trace records per second lost to a full buffer, by stage. Counts are never lost.",
            "Traces have gaps. `export`: collector. `trace_store`: disk. Others: too much load for "
            "full recording; `quarterdeck telemetry`.",
            (_by("quarterdeck_records_dropped_total", "process", "stage"),),
            "ops",
            width=6,
        ),
        Panel(
            "Spans exported",
            "Spans per second that the collector took and did not take; 0 without a collector.",
            "Not taken: `quarterdeck telemetry` has its last error.",
            (
                Query(f"sum(rate(quarterdeck_spans_exported_total{HERE}{RANGE}))", "taken"),
                Query(
                    f"sum(rate(quarterdeck_spans_export_failed_total{HERE}{RANGE}))", "not taken"
                ),
            ),
            "ops",
            width=6,
        ),
        Panel(
            "Collector refuses",
            "1 while the collector takes no spans.",
            "Requests do not feel it. Is the collector up, is the endpoint right? "
            "`quarterdeck telemetry`.",
            (Query(f"quarterdeck_export_failing{HERE}", "failing"),),
            "none",
            width=6,
        ),
        Panel(
            "Traces kept",
            "Request traces that were exported, by the reason why.",
            "Only `ratio`: nothing special happened. Many `slo`: see the SLO dashboard.",
            (_by("quarterdeck_traces_kept_total", "reason", where=HERE),),
            "reqps",
            kind="stack",
            width=6,
        ),
        Panel(
            "Trace store",
            "Size of the local trace store.",
            "At `--trace-store-bytes` the oldest traces go; raise it to look back further.",
            (Query(f"quarterdeck_trace_store_bytes{HERE}", "store"),),
            "bytes",
            width=6,
        ),
        Panel(
            "Log lines",
            "Lines per second by process and level.",
            "Errors: `quarterdeck logs --level error`.",
            (_by("quarterdeck_log_lines_total", "process", "level"),),
            "ops",
            kind="stack",
            width=6,
        ),
        Panel(
            "Answers of the control plane",
            "By status; scrapes are among them.",
            "401 and 403: a wrong key. 5xx: `quarterdeck logs supervisor`.",
            (
                Query(
                    "sum by (route, status) "
                    f"(rate(quarterdeck_admin_responses_total{HERE}{RANGE}))",
                    "{{route}} {{status}}",
                ),
            ),
            "reqps",
            kind="stack",
            width=6,
        ),
        Panel(
            "Operations and audit",
            "Ended operations by kind and outcome, and audit entries, since the start.",
            "`lost` audit entries: the disk is full. Failed operations: `quarterdeck events`.",
            (
                Query(
                    f"sum by (kind, outcome) (quarterdeck_operations_total{HERE})",
                    "{{kind}} {{outcome}}",
                ),
                Query(
                    f"sum by (outcome) (quarterdeck_audit_entries_total{HERE})",
                    "audit {{outcome}}",
                ),
            ),
            "none",
            width=6,
        ),
    ),
)

BOARD = Board(
    "processes",
    "processes and ZMQ",
    "Every process, the messages between them, and the telemetry itself.",
    (COST, MESSAGES, TELEMETRY),
)
