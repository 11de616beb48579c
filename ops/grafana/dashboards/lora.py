"""LoRA adapters: which are there, who asks for them, what loading costs."""

from ops.grafana.board import Board
from ops.grafana.panels import ENGINE, HERE, RANGE, Panel, Query, Row

_CALLS = '{instance="$instance",method=~"(Load|Unload|Pin)Adapter|ListAdapters"}'
_OPERATIONS = '{instance="$instance",kind=~"lora.*"}'
_IN_SLOTS = '{instance="$instance",engine=~"$engine",place="active"}'

ADAPTERS = Row(
    "Adapters",
    (
        Panel(
            "Adapters by place",
            "Adapters that an engine holds, and those of them in a slot that a step can use.",
            "More loaded than slots, and all asked for: they change places; raise `--max-loras`. "
            "Engines differ: `quarterdeck lora list`.",
            (Query(f"quarterdeck_engine_adapters{ENGINE}", "{{engine}} {{place}}"),),
            "none",
        ),
        Panel(
            "Slots in use",
            "Adapters in slots over all engines.",
            "At the limit for long: a request for another adapter waits for a slot.",
            (Query(f"sum(quarterdeck_engine_adapters{_IN_SLOTS})", "active"),),
            "none",
        ),
        Panel(
            "Adapters in use now",
            "Running and waiting adapters of each engine, as the Kubernetes inference gateway "
            "reads them; the value is the time of the report.",
            "An adapter waits although slots are free: `quarterdeck lora list` for its state.",
            (Query(f"1000 * quarterdeck_lora_requests_info{ENGINE}", "{{engine}}"),),
            "dateTimeAsIso",
            kind="table",
        ),
    ),
)

USE = Row(
    "Use and cost",
    (
        Panel(
            "Requests by served name",
            "Ended requests by the name that clients asked for; base models are names too.",
            "An adapter without requests can be unloaded: `quarterdeck lora unload NAME`.",
            (
                Query(
                    f"sum by (model) (rate(quarterdeck_model_requests_total{HERE}{RANGE}))",
                    "{{model}}",
                ),
            ),
            "reqps",
            kind="stack",
        ),
        Panel(
            "Failures by served name",
            "Requests per second that did not finish, by name and outcome; 0 for a name that is "
            "well.",
            "Only one adapter fails: its engine may have lost it; `quarterdeck lora list`, "
            "`quarterdeck events`.",
            (
                Query(
                    "sum by (model) (rate(quarterdeck_model_requests_total"
                    f'{{instance="$instance",outcome!="finished"}}{RANGE})) '
                    f"or 0 * sum by (model) (rate(quarterdeck_model_requests_total{HERE}{RANGE}))",
                    "{{model}}",
                ),
            ),
            "reqps",
        ),
        Panel(
            "Calls to engines",
            "Time of calls that load, unload, pin or list adapters, 95th percentile.",
            "Seconds: a slow disk, or an engine in a long step.",
            (
                Query(
                    "histogram_quantile(0.95, sum by (method, le) "
                    f"(rate(quarterdeck_rpc_duration_seconds_bucket{_CALLS}{RANGE})))",
                    "{{method}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Operations",
            "Ended adapter operations by kind and outcome, since the start.",
            "Failed ones: `quarterdeck events`; the engine says which file or shape is wrong.",
            (
                Query(
                    f"sum by (kind, outcome) (quarterdeck_operations_total{_OPERATIONS})",
                    "{{kind}} {{outcome}}",
                ),
            ),
            "none",
        ),
    ),
)

BOARD = Board(
    "lora",
    "LoRA",
    "LoRA adapters: which are there, who asks for them, what loading costs.",
    (ADAPTERS, USE),
)
