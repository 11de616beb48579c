"""What processes tell of themselves: levels and cumulative counts, whole and idempotent."""

from engine.wire.body import Body

STEP_EDGES = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12)
"""Seconds; the last count is above."""
BATCH_EDGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
AGE_EDGES = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0)
"""Seconds."""
LAG_EDGES = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Seconds."""


class ProcessFigures(Body, frozen=True):
    """What a process costs; the kernel's and the interpreter's own figures."""

    cpu_user_seconds: float
    cpu_system_seconds: float
    resident_bytes: int
    open_fds: int
    max_fds: int
    threads: int
    gc_pauses: int
    """Garbage collections since the start, and how long they held everything up."""
    gc_seconds: float
    gc_max_seconds: float


class EngineStats(Body, frozen=True):
    """Levels and cumulative counts of one engine epoch; sent to client 0 at most 10 times a second.

    Whole and idempotent: a lost message loses nothing.
    """

    step: int
    running: int
    waiting: int
    sleep_level: int
    num_blocks: int
    used_blocks: int
    resident_bytes: int
    prompt_tokens: int
    generation_tokens: int
    cached_tokens: int
    preemptions: int
    finished: dict[str, int]
    """Ended requests by finish reason."""
    sent: dict[str, int]
    """Messages by type name that this engine's sockets took."""
    received: dict[str, int]
    fenced: int
    """Messages of another epoch that were dropped."""
    undecodable: int
    clients_cut_off: int
    records_dropped: int
    step_seconds: float
    """Time spent inside steps, cumulative."""
    prefix_queried_tokens: int = 0
    """Prompt tokens that were looked up in the prefix cache; `cached_tokens` of them were there."""
    cached_blocks: int = 0
    """Free blocks whose content may still be reused."""
    evicted_blocks: int = 0
    """Cached blocks that were given to something else, cumulative."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    grammars_compiled: int = 0
    grammars_refused: int = 0
    adapters_loaded: int = 0
    adapters_active: int = 0
    """In the slots from which a step can use them."""
    length_predictions: int = 0
    """Ended requests whose output length had been predicted."""
    length_error_tokens: int = 0
    """Sum of the absolute errors of those predictions."""
    process: ProcessFigures | None = None
    schedule_seconds: float = 0.0
    """Cumulative parts of `step_seconds`: planning, packing, forward pass, sampling, the rest
    (update and handing the outputs over)."""
    build_seconds: float = 0.0
    forward_seconds: float = 0.0
    sample_seconds: float = 0.0
    send_seconds: float = 0.0
    step_counts: tuple[int, ...] = ()
    """Steps by duration: counts of `STEP_EDGES` and one more for longer ones."""
    batch_counts: tuple[int, ...] = ()
    """Steps by requests in the batch: counts of `BATCH_EDGES` and one more."""
    rows: int = 0
    """Rows computed; `padding_rows` of them for nothing."""
    padding_rows: int = 0
    flops: float = 0.0
    """Floating point operations of the model, estimated from tokens and contexts, cumulative."""
    bytes_moved: float = 0.0
    """Weights and KV bytes that steps read, estimated, cumulative."""
    max_num_seqs: int = 0
    kv_residence_counts: tuple[int, ...] = ()
    """Freed KV blocks by the seconds that they were in use: counts of `AGE_EDGES` and one more."""
    kv_residence_seconds: float = 0.0
    eviction_age_counts: tuple[int, ...] = ()
    """Evicted cached blocks by the seconds since they were last used, as above."""
    eviction_age_seconds: float = 0.0
    inbox: int = 0
    """Messages that wait for the loop."""
    outbox: int = 0
    """Messages that wait for clients to read."""
    records_waiting: int = 0
    adapter_waiting: tuple[tuple[str, int], ...] = ()
    """Waiting requests by adapter; `adapter_running` likewise. Names of loaded adapters only."""
    adapter_running: tuple[tuple[str, int], ...] = ()
    batch_requests: int = 0
    """Requests in the batch, summed up over the steps."""
