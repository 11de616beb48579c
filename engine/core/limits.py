"""What bounds a step and a request."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Limits:
    """What bounds a step and a request."""

    max_num_seqs: int
    max_num_batched_tokens: int
    """Token budget of a step."""
    max_len: int
    """Tokens of a request, prompt included."""
    long_prefill_threshold: int
    """Most tokens of long prompts in a step while others decode; 0: measured, see `ChunkPace`."""
    max_loras: int = 0
    """Adapters that one step can use."""
