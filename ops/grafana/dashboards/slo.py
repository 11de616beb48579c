"""What is promised, how it is kept, and how long the error budget lasts."""

from ops.grafana.board import Board
from ops.grafana.panels import AMBER, GREEN, HERE, MODEL, RANGE, RED, Panel, Query, Row, quantiles

_GOOD = '{instance="$instance",outcome="good"}'
_BAD = '{instance="$instance",outcome="bad"}'
_EVENTS = "quarterdeck_slo_events_total"
_LONG_BURN = '{instance="$instance",window="1h"}'

BUDGET = Row(
    "Budget",
    (
        Panel(
            "Error budget left",
            "Share of the 30 days' budget that is left, by promise; below 0 it is broken.",
            "Stop risky changes. The burn rate beside says whether it still goes.",
            (Query(f"quarterdeck_slo_budget_left_ratio{HERE}", "{{slo}}"),),
            "percentunit",
            kind="stat",
            width=8,
            thresholds=((0, RED), (0.1, AMBER), (0.5, GREEN)),
        ),
        Panel(
            "Burn rate of the last hour",
            "1 uses the budget up in exactly 30 days; 14.4 in two days.",
            "Above 14.4 for an hour somebody is paged: ops/runbooks.",
            (Query(f"quarterdeck_slo_burn_rate{_LONG_BURN}", "{{slo}}"),),
            "none",
            kind="stat",
            width=8,
            thresholds=((0, GREEN), (1, AMBER), (14.4, RED)),
            decimals=1,
        ),
        Panel(
            "Objective",
            "Share of requests that is promised to be good.",
            "Not what you promised? The settings `[slo]`: `quarterdeck config show --sources`.",
            (Query(f"quarterdeck_slo_objective_ratio{HERE}", "{{slo}}"),),
            "percentunit",
            kind="stat",
            width=4,
            decimals=2,
        ),
        Panel(
            "Limit",
            "Limit of the latency promises.",
            "As beside.",
            (Query(f"quarterdeck_slo_threshold_seconds{HERE}", "{{slo}}"),),
            "s",
            kind="stat",
            width=4,
        ),
    ),
)

EVENTS = Row(
    "How it is kept",
    (
        Panel(
            "Burn rate by window",
            "How fast the budget goes, over windows from five minutes to three days.",
            "Short windows high, long ones low: it began just now. All high: it has been bad for "
            "long.",
            (Query(f"quarterdeck_slo_burn_rate{HERE}", "{{slo}} {{window}}"),),
            "none",
            width=12,
        ),
        Panel(
            "Good share",
            "Share of judged requests that were good; gaps where nobody asked.",
            "`quarterdeck slo` says the same in the terminal; `quarterdeck explain --at TIME` what "
            "happened at a dip.",
            (
                Query(
                    f"sum by (slo) (rate({_EVENTS}{_GOOD}{RANGE})) "
                    f"/ sum by (slo) (rate({_EVENTS}{HERE}{RANGE}))",
                    "{{slo}}",
                ),
            ),
            "percentunit",
            width=12,
            maximum=1,
        ),
        Panel(
            "Bad requests",
            "Judged requests per second that broke a promise; dots lead to traces.",
            "availability: failures and refusals for want of capacity. ttft: queues and long "
            "prompts. tpot: crowded or long steps. `quarterdeck explain --slowest`.",
            (Query(f"sum by (slo) (rate({_EVENTS}{_BAD}{RANGE}))", "{{slo}}", exemplars=True),),
            "reqps",
            width=12,
        ),
        Panel(
            "Judged requests",
            "Requests per second that a promise was held against, by outcome.",
            "None: nobody asks, and burn rates say nothing.",
            (
                Query(
                    f"sum by (slo, outcome) (rate({_EVENTS}{HERE}{RANGE}))", "{{slo}} {{outcome}}"
                ),
            ),
            "reqps",
            width=12,
            kind="stack",
        ),
        Panel(
            "Time to first token against its limit",
            "Median and 95th percentile, and the limit.",
            "The 95th percentile over the limit breaks a promise of 95 %.",
            (
                *quantiles(
                    "quarterdeck_time_to_first_token_seconds", "model", MODEL, exemplars=True
                ),
                Query(
                    'quarterdeck_slo_threshold_seconds{instance="$instance",slo="ttft"}', "limit"
                ),
            ),
            "s",
            width=12,
        ),
        Panel(
            "Time per output token against its limit",
            "Median and 95th percentile of finished requests, and the limit.",
            "As beside.",
            (
                *quantiles(
                    "quarterdeck_time_per_output_token_seconds", "model", MODEL, exemplars=True
                ),
                Query(
                    'quarterdeck_slo_threshold_seconds{instance="$instance",slo="tpot"}', "limit"
                ),
            ),
            "s",
            width=12,
        ),
    ),
)

BOARD = Board(
    "slo",
    "SLO",
    "What is promised, how it is kept, and how long the error budget lasts.",
    (BUDGET, EVENTS),
)
