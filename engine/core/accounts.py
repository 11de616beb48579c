"""What an engine has done since its start: cumulative counts, never reset."""

from collections import Counter
from dataclasses import dataclass, field

from engine.core.request import Produced
from engine.core.scheduler import Plan


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

    def add_step(self, plan: Plan, took_ns: int) -> None:
        """Count what a step computed."""
        self.prompt_tokens += plan.prefill_tokens
        self.preemptions += plan.preempted
        self.step_ns += took_ns

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
