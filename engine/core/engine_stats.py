"""Puts an engine's stats together: counts and levels of all its parts, whole and idempotent."""

from collections import Counter
from collections.abc import Callable

from engine.core.loop import EngineCore
from engine.core.records import RecordBuffer
from engine.process_figures import FigureReader
from engine.wire.messages import EngineStats
from engine.wire.sockets import MessageCounts

AdapterUse = tuple[tuple[str, int], ...]


class SocketAccounts:
    """What the IO threads have counted and hold, as the stats want it."""

    def __init__(
        self,
        received: MessageCounts,
        sent: MessageCounts,
        *,
        clients_cut_off: Callable[[], int],
        inbox: Callable[[], int],
        outbox: Callable[[], int],
    ) -> None:
        self.received = received
        self.sent = sent
        self.clients_cut_off = clients_cut_off
        self.inbox = inbox
        self.outbox = outbox


def engine_stats(
    core: EngineCore, sockets: SocketAccounts, records: RecordBuffer, figures: FigureReader
) -> EngineStats:
    """Return what holds now."""
    accounts, scheduler = core.accounts, core.scheduler
    counts, grammars = scheduler.counts, core.intake.grammars.counts
    adapters = core.adapters.counts if core.adapters else None
    parts, pool = accounts.parts, scheduler.pool
    waiting, running = adapter_use(core)
    return EngineStats(
        step=core.step_number,
        running=scheduler.num_running,
        waiting=scheduler.num_waiting,
        sleep_level=core.power.level,
        num_blocks=counts.num_blocks,
        used_blocks=counts.used_blocks,
        resident_bytes=core.resident_bytes(),
        prompt_tokens=accounts.prompt_tokens,
        generation_tokens=accounts.generation_tokens,
        cached_tokens=counts.cached_tokens,
        preemptions=accounts.preemptions,
        finished=dict(accounts.finished),
        sent=dict(sockets.sent.sent),
        received=dict(sockets.received.received),
        fenced=sockets.received.fenced + accounts.fenced,
        undecodable=sockets.received.undecodable,
        clients_cut_off=sockets.clients_cut_off(),
        records_dropped=records.dropped,
        step_seconds=accounts.step_ns / 1e9,
        prefix_queried_tokens=counts.prefix_queried_tokens,
        cached_blocks=counts.cached_blocks,
        evicted_blocks=counts.evicted_blocks,
        drafted_tokens=counts.drafted_tokens,
        accepted_tokens=counts.accepted_tokens,
        grammars_compiled=grammars.compiled,
        grammars_refused=grammars.refused,
        adapters_loaded=adapters.loaded if adapters else 0,
        adapters_active=adapters.active if adapters else 0,
        length_predictions=counts.length_predictions,
        length_error_tokens=counts.length_error_tokens,
        process=figures.read(),
        schedule_seconds=parts.schedule_ns / 1e9,
        build_seconds=parts.build_ns / 1e9,
        forward_seconds=parts.forward_ns / 1e9,
        sample_seconds=parts.sample_ns / 1e9,
        send_seconds=parts.send_ns / 1e9,
        step_counts=tuple(accounts.step_counts),
        batch_counts=tuple(accounts.batch_counts),
        batch_requests=accounts.batch_requests,
        rows=accounts.rows,
        padding_rows=accounts.padding_rows,
        flops=accounts.flops,
        bytes_moved=accounts.bytes_moved,
        max_num_seqs=core.config.max_num_seqs,
        kv_residence_counts=pool.residence.counts,
        kv_residence_seconds=pool.residence.seconds,
        eviction_age_counts=pool.eviction_age.counts,
        eviction_age_seconds=pool.eviction_age.seconds,
        inbox=sockets.inbox(),
        outbox=sockets.outbox(),
        records_waiting=len(records),
        adapter_waiting=waiting,
        adapter_running=running,
    )


def adapter_use(core: EngineCore) -> tuple[AdapterUse, AdapterUse]:
    """Return how many requests wait and run, by the name of their adapter."""
    waiting: Counter[str] = Counter()
    running: Counter[str] = Counter()
    if core.adapters is not None:
        for request in core.scheduler.requests.values():
            if request.adapter_name is not None:
                (running if request.running else waiting)[request.adapter_name] += 1
    return tuple(waiting.items()), tuple(running.items())
