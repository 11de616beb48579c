"""What an engine does with its time: steps, their parts, batches, the machine's limits."""

from ops.grafana.board import Board
from ops.grafana.panels import ENGINE, RANGE, Panel, Query, Row


def _rate(metric: str) -> str:
    return f"rate({metric}{ENGINE}{RANGE})"


def _share(part: str, whole: str) -> str:
    """One counter's part of another; 0 while nothing happens."""
    return f"{_rate(part)} / clamp_min({_rate(whole)}, 1e-9)"


STEPS = Row(
    "Steps",
    (
        Panel(
            "Steps per second",
            "Scheduler steps by engine.",
            "0 with requests running: the engine hangs; `quarterdeck profile ENGINE --stacks`.",
            (Query(_rate("quarterdeck_engine_steps_total"), "{{engine}}"),),
            "ops",
            width=6,
        ),
        Panel(
            "Time inside steps",
            "Share of time that the engine's loop is in a step; 1 is a busy engine.",
            "Near 1 with requests waiting: the engine is full. Low with requests waiting: "
            "something else holds it up; see the parts.",
            (Query(_rate("quarterdeck_engine_step_seconds_total"), "{{engine}}"),),
            "percentunit",
            width=6,
            maximum=1,
        ),
        Panel(
            "Step time by part",
            "Share of time in planning, packing, the forward pass, sampling, and handing over.",
            "Anything but `forward` beyond a few percent: `quarterdeck profile ENGINE --steps 20`.",
            (
                Query(
                    f"sum by (part) ({_rate('quarterdeck_engine_step_part_seconds_total')})",
                    "{{part}}",
                ),
            ),
            "percentunit",
            kind="stack",
            width=6,
        ),
        Panel(
            "Duration of steps",
            "How many steps took how long.",
            "A second band far above: chunks of long prompts, or another process on the cores.",
            (
                Query(
                    "sum by (le) (increase(quarterdeck_engine_step_duration_seconds_bucket"
                    f"{ENGINE}{RANGE}))",
                    "{{le}}",
                ),
            ),
            "s",
            kind="heatmap",
            width=6,
        ),
        Panel(
            "Duration of steps, percentiles",
            "Median and 99th percentile by engine: what a token waits for.",
            "Grows with the batch: normal. Grows alone: a shared machine, or long contexts.",
            tuple(
                Query(
                    f"histogram_quantile({quantile}, sum by (engine, le) "
                    f"({_rate('quarterdeck_engine_step_duration_seconds_bucket')}))",
                    f"{{{{engine}}}} {name}",
                )
                for quantile, name in ((0.5, "p50"), (0.99, "p99"))
            ),
            "s",
            width=6,
        ),
        Panel(
            "Since the last sign of life",
            "Age of the last tick of the engine's loop; an idle loop ticks too.",
            "Beyond the hang limit (10 s) the supervisor dumps its stacks and restarts it.",
            (Query(f"quarterdeck_engine_heartbeat_age_seconds{ENGINE}", "{{engine}}"),),
            "s",
            width=6,
        ),
        Panel(
            "Restarts",
            "Restarts of each engine since the appliance started.",
            "`quarterdeck postmortem ENGINE`: the last steps and events before it died.",
            (Query(f"quarterdeck_engine_restarts_total{ENGINE}", "{{engine}}"),),
            "none",
            width=6,
        ),
        Panel(
            "Last start by phase",
            "Seconds that each phase of the last start took.",
            "`weights` long: slow disk. `warm_up` long: kernels are compiled.",
            (Query(f"quarterdeck_engine_start_seconds{ENGINE}", "{{engine}} {{phase}}"),),
            "s",
            width=6,
        ),
    ),
)

BATCHES = Row(
    "Batches",
    (
        Panel(
            "Batch occupancy",
            "Mean requests in a step, as a share of the most that a step may have.",
            "Near 1 with requests waiting: raise `--max-num-seqs` if there is KV memory left.",
            (
                Query(
                    f"{_share('quarterdeck_engine_batch_requests_sum', 'quarterdeck_engine_batch_requests_count')} "  # noqa: E501
                    f"/ quarterdeck_engine_batch_limit{ENGINE}",
                    "{{engine}}",
                ),
            ),
            "percentunit",
        ),
        Panel(
            "Requests in a step",
            "Median and 95th percentile of the batch.",
            "Small although requests wait: no KV blocks; see the KV dashboard.",
            tuple(
                Query(
                    f"histogram_quantile({quantile}, sum by (engine, le) "
                    f"({_rate('quarterdeck_engine_batch_requests_bucket')}))",
                    f"{{{{engine}}}} {name}",
                )
                for quantile, name in ((0.5, "p50"), (0.95, "p95"))
            ),
            "none",
        ),
        Panel(
            "Padding waste",
            "Share of computed rows that only fill a tile.",
            "High: tiny batches. It costs nothing while the machine is not full.",
            (
                Query(
                    _share(
                        "quarterdeck_engine_padding_rows_total", "quarterdeck_engine_rows_total"
                    ),
                    "{{engine}}",
                ),
            ),
            "percentunit",
        ),
        Panel(
            "Tokens per second and engine",
            "Prompt tokens computed and tokens generated by each engine (one device each).",
            "Engines of one model differ: requests are not spread, or one shares its cores.",
            (
                Query(_rate("quarterdeck_engine_prompt_tokens_total"), "{{engine}} prompt"),
                Query(_rate("quarterdeck_engine_generation_tokens_total"), "{{engine}} generated"),
            ),
            "cps",
        ),
        Panel(
            "Requests in engines",
            "In the batch, and waiting for a place in it.",
            "Waiting stays above 0: the engine cannot carry the load.",
            (
                Query(f"quarterdeck_engine_running_requests{ENGINE}", "{{engine}} running"),
                Query(f"quarterdeck_engine_waiting_requests{ENGINE}", "{{engine}} waiting"),
            ),
            "none",
        ),
        Panel(
            "Preemptions and lost clients",
            "Requests that gave their KV blocks back and start again, and clients that were given "
            "up because they did not read.",
            "Preemptions: see the KV dashboard. Lost clients: a gateway hung or had no CPU.",
            (
                Query(_rate("quarterdeck_engine_preemptions_total"), "{{engine}} preempted"),
                Query(_rate("quarterdeck_engine_clients_cut_off_total"), "{{engine}} cut off"),
            ),
            "ops",
        ),
    ),
)

MACHINE = Row(
    "Against the machine",
    (
        Panel(
            "Compute used",
            "Estimated operations of the model, as a share of what the device reached when it was "
            "measured at the start.",
            "Low in prefill-heavy load: the batch is small, or the machine is shared.",
            (
                Query(
                    f"{_rate('quarterdeck_engine_flops_total')} "
                    f"/ quarterdeck_engine_peak_flops{ENGINE}",
                    "{{engine}}",
                ),
            ),
            "percentunit",
            width=6,
        ),
        Panel(
            "Memory bandwidth used",
            "Estimated bytes of weights and KV that steps read, as a share of the measured rate.",
            "Decodes should be near it; if neither this nor compute is high, Python or other "
            "processes are in the way: `quarterdeck profile ENGINE`.",
            (
                Query(
                    f"{_rate('quarterdeck_engine_bytes_moved_total')} "
                    f"/ quarterdeck_engine_peak_bytes_per_second{ENGINE}",
                    "{{engine}}",
                ),
            ),
            "percentunit",
            width=6,
        ),
        Panel(
            "Operations per second",
            "Of the model, estimated from tokens and contexts.",
            "For comparison between machines; see “Compute used”.",
            (Query(_rate("quarterdeck_engine_flops_total"), "{{engine}}"),),
            "flops",
            width=6,
        ),
        Panel(
            "Memory of the engine",
            "What the engine's process and device hold.",
            "It grows without new adapters: a leak; `quarterdeck profile ENGINE`.",
            (Query(f"quarterdeck_engine_resident_bytes{ENGINE}", "{{engine}}"),),
            "bytes",
            width=6,
        ),
        Panel(
            "Sleep level",
            "0 is awake, 1 and 2 are asleep.",
            "Asleep although requests come: `--on-asleep reject`, or wake-ups fail; "
            "`quarterdeck events`.",
            (Query(f"quarterdeck_engine_sleep_level{ENGINE}", "{{engine}}"),),
            "none",
            width=6,
        ),
        Panel(
            "Guesses that were right",
            "Share of tokens guessed by prompt lookup that were right; 0 without "
            "`--speculative-tokens`.",
            "Below 0.2: guessing costs more than it gives; turn it off.",
            (
                Query(
                    _share(
                        "quarterdeck_engine_accepted_tokens_total",
                        "quarterdeck_engine_drafted_tokens_total",
                    ),
                    "{{engine}}",
                ),
            ),
            "percentunit",
            width=6,
            maximum=1,
        ),
        Panel(
            "Grammars",
            "Grammars compiled for structured output, and refused ones.",
            "Refused: a client sends schemas that are too large or wrong; it got a 400.",
            (
                Query(
                    f"sum by (engine, outcome) ({_rate('quarterdeck_engine_grammars_total')})",
                    "{{engine}} {{outcome}}",
                ),
            ),
            "ops",
            width=6,
        ),
        Panel(
            "Error of predicted lengths",
            "Mean absolute error of predicted output lengths, in tokens.",
            "Large: prediction does not help this load; `--no-predict-lengths`.",
            (
                Query(
                    _share(
                        "quarterdeck_engine_length_error_tokens_total",
                        "quarterdeck_engine_length_predictions_total",
                    ),
                    "{{engine}}",
                ),
            ),
            "none",
            width=6,
        ),
    ),
)

BOARD = Board(
    "engine-step",
    "engine step",
    "What an engine does with its time: steps, their parts, batches, the machine's limits.",
    (STEPS, BATCHES, MACHINE),
)
