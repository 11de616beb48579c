"""A few greedy tokens from a fixed prompt: the same before a sleep and after it, or else."""

from engine.core.batch import ModelRunner, ScheduledRequest
from engine.core.scheduler import Scheduler
from engine.wire.messages import SamplingParams

PROMPT_LENGTH = 4
NUM_TOKENS = 4


def canary_tokens(runner: ModelRunner, scheduler: Scheduler, vocab_size: int) -> tuple[int, ...]:
    """Generate the canary's tokens; no request may be live, the blocks are as before afterwards."""
    tokens = [index * vocab_size // PROMPT_LENGTH for index in range(PROMPT_LENGTH)]
    length = min(PROMPT_LENGTH + NUM_TOKENS, scheduler.max_len)
    sampling = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    computed = 0
    with scheduler.borrow_blocks(length) as (block_table, window_table):
        while len(tokens) < length:
            share = ScheduledRequest(
                request_id="engine.canary",
                token_ids=tokens[computed:],
                start_position=computed,
                block_table=block_table,
                samples=True,
                sampling=sampling,
                num_output_tokens=len(tokens) - PROMPT_LENGTH,
                history=tokens,
                num_prompt_tokens=PROMPT_LENGTH,
                window_table=window_table,
            )
            computed = len(tokens)
            tokens.extend(runner.execute([share]).token_ids["engine.canary"])
    return tuple(tokens[PROMPT_LENGTH:])
