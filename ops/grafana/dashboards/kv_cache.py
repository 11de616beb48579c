"""KV blocks and the prefix cache: how full, how useful, how long things stay."""

from ops.grafana.board import Board
from ops.grafana.panels import ENGINE, MODEL, RANGE, Panel, Query, Row


def _ages(histogram: str) -> tuple[Query, ...]:
    rates = f"sum by (engine, le) (rate({histogram}_bucket{ENGINE}{RANGE}))"
    return (
        Query(f"histogram_quantile(0.5, {rates})", "{{engine}} p50"),
        Query(f"histogram_quantile(0.95, {rates})", "{{engine}} p95"),
    )


BLOCKS = Row(
    "KV blocks",
    (
        Panel(
            "In use",
            "Share of KV blocks that running requests hold.",
            "Near 1 with preemptions beside: too many or too long requests for the memory. "
            "`--kv-cache-bytes`, `--max-num-seqs`.",
            (Query(f"quarterdeck_kv_cache_used_ratio{ENGINE}", "{{engine}}"),),
            "percentunit",
            maximum=1,
        ),
        Panel(
            "Blocks by use",
            "All blocks; in use by requests; free, but with content that may be used again.",
            "Few reusable ones: nothing repeats, or requests need all of it.",
            (
                Query(f"quarterdeck_engine_kv_blocks{ENGINE}", "{{engine}} all"),
                Query(
                    f"quarterdeck_kv_cache_used_ratio{ENGINE} "
                    f"* quarterdeck_engine_kv_blocks{ENGINE}",
                    "{{engine}} in use",
                ),
                Query(f"quarterdeck_engine_prefix_cached_blocks{ENGINE}", "{{engine}} reusable"),
            ),
            "none",
        ),
        Panel(
            "Preemptions",
            "Requests that gave their blocks back and start again, per second.",
            "Above 0 for minutes: work is done twice. See “In use”.",
            (Query(f"rate(quarterdeck_engine_preemptions_total{ENGINE}{RANGE})", "{{engine}}"),),
            "ops",
        ),
        Panel(
            "How long blocks are held",
            "Time that blocks were in use when they were freed.",
            "Minutes: long outputs or preempted requests hold the memory.",
            _ages("quarterdeck_engine_kv_residence_seconds"),
            "s",
        ),
        Panel(
            "Size of the cache",
            "Blocks and tokens per block, as the Kubernetes inference gateway reads them.",
            "Smaller than meant: other things took the memory at the start; `quarterdeck ps`.",
            (Query(f"quarterdeck_cache_config_info{ENGINE}", "{{engine}}"),),
            "none",
            kind="table",
            width=16,
        ),
    ),
)

PREFIXES = Row(
    "Prefix cache",
    (
        Panel(
            "Hit ratio by tokens",
            "Share of prompt tokens looked up that were there; gaps without prompts.",
            "Low with repeated system prompts: prompts differ early (a date, an id), salts differ, "
            "or blocks are evicted first (below).",
            (
                Query(
                    f"rate(quarterdeck_engine_prefix_cached_tokens_total{ENGINE}{RANGE}) "
                    f"/ rate(quarterdeck_engine_prefix_queried_tokens_total{ENGINE}{RANGE})",
                    "{{engine}}",
                ),
            ),
            "percentunit",
            maximum=1,
        ),
        Panel(
            "Tokens looked up and found",
            "Prompt tokens per second that were looked up, and that were there.",
            "Found falls while looked up does not: evictions, or other prompts.",
            (
                Query(
                    f"sum(rate(quarterdeck_engine_prefix_queried_tokens_total{ENGINE}{RANGE}))",
                    "looked up",
                ),
                Query(
                    f"sum(rate(quarterdeck_engine_prefix_cached_tokens_total{ENGINE}{RANGE}))",
                    "found",
                ),
            ),
            "cps",
        ),
        Panel(
            "Saved share by model",
            "Prompt tokens of ended requests that were not computed.",
            "One model far below the others: its prompts do not repeat.",
            (
                Query(
                    f"sum by (model) (rate(quarterdeck_cached_prompt_tokens_total{MODEL}{RANGE})) "
                    f"/ sum by (model) (rate(quarterdeck_prompt_tokens_total{MODEL}{RANGE}))",
                    "{{model}}",
                ),
            ),
            "percentunit",
            maximum=1,
        ),
        Panel(
            "Evictions",
            "Cached blocks given to something else, per second.",
            "High with a low age beside: the cache is too small for what repeats.",
            (
                Query(
                    f"rate(quarterdeck_engine_prefix_evicted_blocks_total{ENGINE}{RANGE})",
                    "{{engine}}",
                ),
            ),
            "ops",
        ),
        Panel(
            "Age of evicted blocks",
            "How long evicted blocks had not been used.",
            "Seconds: blocks go before they can be used again. More KV memory pays here.",
            _ages("quarterdeck_engine_eviction_age_seconds"),
            "s",
        ),
    ),
)

BOARD = Board(
    "kv-cache",
    "KV and prefix cache",
    "KV blocks and the prefix cache: how full, how useful, how long things stay.",
    (BLOCKS, PREFIXES),
)
