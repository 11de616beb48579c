"""A request from its arrival to its last byte: accounts, phases, keys, hops."""

from ops.grafana.board import Board
from ops.grafana.panels import GATEWAY, HERE, MODEL, RANGE, Panel, Query, Row, quantiles

_LAG_OF_GATEWAYS = '{instance="$instance",process=~"$gateway"}'


def _rate(metric: str, by: str, *, exemplars: bool = False) -> Query:
    expr = f"sum by ({by}) (rate({metric}{HERE}{RANGE}))"
    return Query(expr, f"{{{{{by}}}}}", exemplars=exemplars)


def _time_in(metric: str, name: str) -> Query:
    """Seconds of requests' time per second that a phase took."""
    return Query(f"sum(rate({metric}_sum{HERE}{RANGE}))", name)


ACCOUNTS = Row(
    "Accounts: received = rejected + accepted; accepted = ended + running",
    (
        Panel(
            "Received and accepted",
            "Requests that reached a generating route, and those that passed admission.",
            "A gap between the two is refusals: next panel.",
            (
                Query(f"sum(rate(quarterdeck_requests_received_total{HERE}{RANGE}))", "received"),
                Query(f"sum(rate(quarterdeck_requests_accepted_total{HERE}{RANGE}))", "accepted"),
            ),
            "reqps",
            width=6,
        ),
        Panel(
            "Refused by code",
            "Requests refused before they were accepted, by error code; dots lead to traces.",
            "`server_overloaded`: more load than capacity. `rate_limit_exceeded`: a key's limit. "
            "`invalid_api_key`: a client's key was revoked. Others: clients send bad requests.",
            (_rate("quarterdeck_requests_rejected_total", "code", exemplars=True),),
            "reqps",
            kind="stack",
            width=6,
        ),
        Panel(
            "Ended by outcome",
            "Accepted requests that ended: finished, aborted (the client left), failed (we did). "
            "Dots lead to traces.",
            "Failed: `quarterdeck requests --state failed`. Aborted: clients time out; compare "
            "with the time to first token.",
            (_rate("quarterdeck_requests_ended_total", "outcome", exemplars=True),),
            "reqps",
            kind="stack",
            width=6,
        ),
        Panel(
            "Running by route",
            "Accepted requests that have not ended.",
            "Not 0 although nobody asks: `quarterdeck requests` shows what hangs.",
            (Query(f"sum by (route) (quarterdeck_requests_running{HERE})", "{{route}}"),),
            "none",
            width=6,
        ),
        Panel(
            "HTTP answers by status",
            "Answers of the data plane on all routes.",
            "5xx is ours: `quarterdeck events`. 429: limits. 401: keys.",
            (_rate("quarterdeck_http_responses_total", "status"),),
            "reqps",
            kind="stack",
            width=6,
        ),
        Panel(
            "Served names by outcome",
            "Ended requests by the name that clients asked for; adapters have their own.",
            "One name fails and others do not: its engine or its adapter; `quarterdeck ps`, "
            "`quarterdeck lora list`.",
            (
                Query(
                    "sum by (model, outcome) "
                    f"(rate(quarterdeck_model_requests_total{HERE}{RANGE}))",
                    "{{model}} {{outcome}}",
                ),
            ),
            "reqps",
            kind="stack",
            width=6,
        ),
        Panel(
            "Sent again and odd requests",
            "Requests that were sent again because their engine died before the first token, and "
            "requests with unknown fields.",
            "Sent again: an engine died; `quarterdeck postmortem ENGINE`. Unknown fields: a client "
            "expects something that is not done; `--strict-parameters` tells it.",
            (
                Query(f"sum(rate(quarterdeck_requests_requeued_total{HERE}{RANGE}))", "sent again"),
                Query(
                    f"sum(rate(quarterdeck_ignored_parameters_total{HERE}{RANGE}))",
                    "unknown fields",
                ),
            ),
            "reqps",
            width=6,
        ),
        Panel(
            "Gateway restarts",
            "Restarts of each gateway since the appliance started.",
            "It grows: `quarterdeck logs gateway-0` has the last words.",
            (Query(f"quarterdeck_gateway_restarts_total{GATEWAY}", "{{gateway}}"),),
            "none",
            width=6,
        ),
    ),
)

LATENCY = Row(
    "Where the time goes",
    (
        Panel(
            "Time to first token, all requests",
            "How many requests had their first token after how long.",
            "Two bands: two kinds of prompts, or cold and warm prefixes. A band that climbs: a "
            "queue.",
            (
                Query(
                    "sum by (le) (increase(quarterdeck_time_to_first_token_seconds_bucket"
                    f"{MODEL}{RANGE}))",
                    "{{le}}",
                ),
            ),
            "s",
            kind="heatmap",
        ),
        Panel(
            "Time to first token",
            "Median and 95th percentile by model; dots lead to traces.",
            "`quarterdeck explain ID` of a slow one names the cause.",
            quantiles("quarterdeck_time_to_first_token_seconds", "model", MODEL, exemplars=True),
            "s",
        ),
        Panel(
            "Duration by outcome",
            "From arrival to the last byte, by outcome; dots lead to traces.",
            "Long with a good time per token: long outputs. Else see the phases beside.",
            quantiles("quarterdeck_request_duration_seconds", "outcome", MODEL, exemplars=True),
            "s",
        ),
        Panel(
            "Requests' time by phase",
            "Seconds that ended requests spent in each phase, per second: the height is how many "
            "there were at a time (each choice counts), the share is where their time goes.",
            "`queue` large: engines are full. `prefill`: long or cold prompts. `stream`: clients "
            "read slowly. `tokenize` or `dispatch`: the gateway is overloaded.",
            (
                Query(
                    f"sum by (phase) (rate(quarterdeck_phase_seconds_sum{HERE}{RANGE}))",
                    "{{phase}}",
                ),
                _time_in("quarterdeck_queue_seconds", "queue"),
                _time_in("quarterdeck_prefill_seconds", "prefill"),
                _time_in("quarterdeck_decode_seconds", "decode"),
            ),
            "none",
            kind="stack",
        ),
        Panel(
            "Phases in the engine",
            "95th percentile of the wait for the first step, of the time to the first token after "
            "it, and of the time to the last token. Dots lead to traces that waited.",
            "`queue`: too few places or engines. `prefill`: chunks of long prompts.",
            tuple(
                Query(
                    "histogram_quantile(0.95, sum by (le) "
                    f"(rate(quarterdeck_{phase}_seconds_bucket{MODEL}{RANGE})))",
                    phase,
                    exemplars=phase == "queue",
                )
                for phase in ("queue", "prefill", "decode")
            ),
            "s",
        ),
        Panel(
            "Phases in the gateway",
            "95th percentile of authentication, admission, tokenizing, choosing an engine, and the "
            "stream after the engine was done.",
            "`stream` long: slow clients. `tokenize` long: huge prompts, or a gateway without CPU.",
            (
                Query(
                    "histogram_quantile(0.95, sum by (phase, le) "
                    f"(rate(quarterdeck_phase_seconds_bucket{HERE}{RANGE})))",
                    "{{phase}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Between two tokens",
            "Gaps between tokens of a choice as they leave the gateway; tokens that come at once "
            "share the time.",
            "The 95th percentile far above the median: long prompts share steps with decodes "
            "(`--long-prefill-threshold`), or preemptions.",
            quantiles("quarterdeck_inter_token_seconds", "model", MODEL),
            "s",
        ),
        Panel(
            "Waiting for clients to read",
            "Seconds per second that sends of answers waited for the client.",
            "Above 0 for long: clients or the network are slow, not we.",
            (Query(f"sum(rate(quarterdeck_send_blocked_seconds_total{HERE}{RANGE}))", "blocked"),),
            "none",
        ),
        Panel(
            "From process to process",
            "Time of messages between gateways, engines and supervisor, 99th percentile.",
            "Milliseconds: the receiver has no CPU; see loop lag on the process dashboard.",
            (
                Query(
                    "histogram_quantile(0.99, sum by (message, le) "
                    f"(rate(quarterdeck_hop_seconds_bucket{HERE}{RANGE})))",
                    "{{message}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Loop lag of the gateways",
            "How late timers of a gateway's event loop fire, 99th percentile.",
            "Above 0.1 s: this gateway is overloaded; raise `--gateways`.",
            (
                Query(
                    "histogram_quantile(0.99, sum by (process, le) "
                    f"(rate(quarterdeck_loop_lag_seconds_bucket{_LAG_OF_GATEWAYS}{RANGE})))",
                    "{{process}}",
                ),
            ),
            "s",
        ),
    ),
)

TOKENS = Row(
    "Tokens and who asks for them",
    (
        Panel(
            "Tokens of ended requests",
            "Prompt tokens, those of them that were not computed, and generated tokens.",
            "Much prompt for little output: prefixes should be shared.",
            (
                Query(f"sum(rate(quarterdeck_prompt_tokens_total{MODEL}{RANGE}))", "prompt"),
                Query(f"sum(rate(quarterdeck_cached_prompt_tokens_total{MODEL}{RANGE}))", "cached"),
                Query(
                    f"sum(rate(quarterdeck_completion_tokens_total{MODEL}{RANGE}))", "completion"
                ),
            ),
            "cps",
            width=6,
        ),
        Panel(
            "Sizes of requests",
            "Prompt and generated tokens of a request, 95th percentile.",
            "A jump explains slower requests without a fault of ours.",
            (
                Query(
                    "histogram_quantile(0.95, sum by (le) "
                    f"(rate(quarterdeck_request_prompt_tokens_bucket{MODEL}{RANGE})))",
                    "prompt",
                ),
                Query(
                    "histogram_quantile(0.95, sum by (le) "
                    f"(rate(quarterdeck_request_completion_tokens_bucket{MODEL}{RANGE})))",
                    "completion",
                ),
            ),
            "none",
            width=6,
        ),
        Panel(
            "Requests by key",
            "Ended requests by key id and outcome.",
            "One key floods: `quarterdeck keys list` says whose it is; `--policy fair` gives each "
            "key its share.",
            (
                Query(
                    f"sum by (key, outcome) (rate(quarterdeck_key_requests_total{HERE}{RANGE}))",
                    "{{key}} {{outcome}}",
                ),
            ),
            "reqps",
            kind="stack",
            width=6,
        ),
        Panel(
            "Tokens by key",
            "Tokens by key id and kind: prompt, cached, completion.",
            "As beside.",
            (
                Query(
                    f"sum by (key, kind) (rate(quarterdeck_key_tokens_total{HERE}{RANGE}))",
                    "{{key}} {{kind}}",
                ),
            ),
            "cps",
            kind="stack",
            width=6,
        ),
    ),
)

BOARD = Board(
    "request-path",
    "request path",
    "A request from its arrival to its last byte: accounts, phases, keys, hops.",
    (ACCOUNTS, LATENCY, TOKENS),
)
