"""What an engine has done since its start: cumulative counts, never reset."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from engine.core.batch import ModelFacts, StepResult
from engine.core.request import Produced
from engine.core.scheduler import Plan
from engine.core.step_costs import step_costs
from engine.wire.hops import StepRecord
from engine.wire.stats import BATCH_EDGES, STEP_EDGES

_STEP_EDGES_NS = tuple(int(edge * 1e9) for edge in STEP_EDGES)


@dataclass(slots=True)
class StepParts:
    """Where the time inside steps went, nanoseconds."""

    schedule_ns: int = 0
    build_ns: int = 0
    forward_ns: int = 0
    sample_ns: int = 0
    send_ns: int = 0
    """Taking the result in and handing the outputs over."""

    def add(self, step: StepRecord) -> None:
        """Add a step; a runner that does not tell its stages counts as all forward."""
        built_ns = step.built_ns or step.scheduled_ns
        forwarded_ns = step.forwarded_ns or step.executed_ns
        self.schedule_ns += step.scheduled_ns - step.start_ns
        self.build_ns += built_ns - step.scheduled_ns
        self.forward_ns += forwarded_ns - built_ns
        self.sample_ns += step.executed_ns - forwarded_ns
        self.send_ns += step.end_ns - step.executed_ns


@dataclass(slots=True)
class Accounts:
    """Counts of the loop; those of the sockets are kept by the IO threads."""

    prompt_tokens: int = 0
    """Computed by prefill, recomputed ones included."""
    generation_tokens: int = 0
    preemptions: int = 0
    finished: Counter[str] = field(default_factory=lambda: Counter())
    """Ended requests of clients, by finish reason."""
    fenced: int = 0
    """Messages of a client's older epoch."""
    step_ns: int = 0
    last_token_ns: int | None = None
    parts: StepParts = field(default_factory=StepParts)
    step_counts: list[int] = field(default_factory=lambda: [0] * (len(STEP_EDGES) + 1))
    """Steps by duration, see `EngineStats.step_counts`."""
    batch_counts: list[int] = field(default_factory=lambda: [0] * (len(BATCH_EDGES) + 1))
    batch_requests: int = 0
    rows: int = 0
    padding_rows: int = 0
    flops: float = 0.0
    bytes_moved: float = 0.0

    def add_step(self, plan: Plan, result: StepResult, step: StepRecord) -> None:
        """Count what a step computed and where its time went."""
        took_ns = step.end_ns - step.start_ns
        self.prompt_tokens += plan.prefill_tokens
        self.preemptions += plan.preempted
        self.step_ns += took_ns
        self.parts.add(step)
        self.step_counts[bisect_left(_STEP_EDGES_NS, took_ns)] += 1
        self.batch_counts[bisect_left(BATCH_EDGES, step.requests)] += 1
        self.batch_requests += step.requests
        if result.rows:
            self.rows += result.rows
            computed = plan.prefill_tokens + plan.decode_tokens + plan.drafted
            self.padding_rows += result.rows - computed

    def add_costs(self, plan: Plan, facts: ModelFacts) -> None:
        """Count what a step cost by the model's shape."""
        if facts.costs is not None:
            flops, num_bytes = step_costs(facts.costs, plan.batch)
            self.flops += flops
            self.bytes_moved += num_bytes

    def add_output(self, produced: Produced, now_ns: int) -> None:
        """Count a token, and an end; the engine's own probes do not count."""
        output = produced.output
        if output.new_token_ids:
            self.last_token_ns = now_ns
        if produced.request.owner is None:
            return
        self.generation_tokens += len(output.new_token_ids)
        if output.finish_reason is not None:
            self.finished[output.finish_reason.value] += 1
