"""An engine's stats as accounts: its counts and histograms, which outlive it."""

from collections.abc import Iterator

from appliance.telemetry import names
from appliance.telemetry.accounts import Accounts, Labels
from appliance.telemetry.names import Metric
from appliance.telemetry.process_accounts import book_figures
from appliance.telemetry.records import AccountsSnapshot
from engine.wire.messages import EngineStats


def engine_accounts(engine_id: str, epoch: int, stats: EngineStats) -> AccountsSnapshot:
    """Return what an engine has counted, as its process would have shipped it."""
    accounts = Accounts(engine_id, epoch)
    for metric, labels, value in _counts(engine_id, stats):
        accounts.set(metric, labels, value)
    for message, count in stats.sent.items():
        accounts.set(names.MESSAGES_SENT, (engine_id, message), count)
    for message, count in stats.received.items():
        accounts.set(names.MESSAGES_RECEIVED, (engine_id, message), count)
    _book_histograms(accounts, (engine_id,), stats)
    if stats.process is not None:
        book_figures(accounts, engine_id, stats.process)
    return accounts.snapshot()


def _counts(engine_id: str, stats: EngineStats) -> Iterator[tuple[Metric, Labels, float]]:
    label = (engine_id,)
    yield names.ENGINE_STEPS, label, stats.step
    yield names.ENGINE_STEP_SECONDS, label, stats.step_seconds
    yield names.ENGINE_PREEMPTIONS, label, stats.preemptions
    yield names.ENGINE_PROMPT_TOKENS, label, stats.prompt_tokens
    yield names.ENGINE_GENERATION_TOKENS, label, stats.generation_tokens
    yield names.ENGINE_PREFIX_QUERIED, label, stats.prefix_queried_tokens
    yield names.ENGINE_CACHED_TOKENS, label, stats.cached_tokens
    yield names.ENGINE_EVICTED_BLOCKS, label, stats.evicted_blocks
    yield names.ENGINE_DRAFTED_TOKENS, label, stats.drafted_tokens
    yield names.ENGINE_ACCEPTED_TOKENS, label, stats.accepted_tokens
    yield names.ENGINE_GRAMMARS, (engine_id, "compiled"), stats.grammars_compiled
    yield names.ENGINE_GRAMMARS, (engine_id, "refused"), stats.grammars_refused
    yield names.ENGINE_LENGTH_PREDICTIONS, label, stats.length_predictions
    yield names.ENGINE_LENGTH_ERROR, label, stats.length_error_tokens
    yield names.ENGINE_STEP_PARTS, (engine_id, "schedule"), stats.schedule_seconds
    yield names.ENGINE_STEP_PARTS, (engine_id, "build"), stats.build_seconds
    yield names.ENGINE_STEP_PARTS, (engine_id, "forward"), stats.forward_seconds
    yield names.ENGINE_STEP_PARTS, (engine_id, "sample"), stats.sample_seconds
    yield names.ENGINE_STEP_PARTS, (engine_id, "send"), stats.send_seconds
    yield names.ENGINE_ROWS, label, stats.rows
    yield names.ENGINE_PADDING_ROWS, label, stats.padding_rows
    yield names.ENGINE_FLOPS, label, stats.flops
    yield names.ENGINE_BYTES, label, stats.bytes_moved
    yield names.ENGINE_CUT_OFF, label, stats.clients_cut_off
    yield names.MESSAGES_FENCED, label, stats.fenced
    yield names.MESSAGES_UNDECODABLE, label, stats.undecodable
    yield names.RECORDS_DROPPED, (engine_id, "engine"), stats.records_dropped


def _book_histograms(accounts: Accounts, label: Labels, stats: EngineStats) -> None:
    """Empty counts are of an engine that does not tell: no histogram is better than a wrong one."""
    for metric, counts, total in (
        (names.ENGINE_STEP_DURATION, stats.step_counts, stats.step_seconds),
        (names.ENGINE_BATCH, stats.batch_counts, stats.batch_requests),
        (names.ENGINE_KV_RESIDENCE, stats.kv_residence_counts, stats.kv_residence_seconds),
        (names.ENGINE_EVICTION_AGE, stats.eviction_age_counts, stats.eviction_age_seconds),
    ):
        accounts.set_histogram(metric, label, counts, total)
