"""A few greedy tokens from a fixed prompt: the same before a sleep and after it, or else."""

from engine.core.batch import ModelRunner, ScheduledRequest
from engine.core.block_pool import BlockPool
from engine.wire.messages import SamplingParams

PROMPT_LENGTH = 4
NUM_TOKENS = 4


def canary_tokens(runner: ModelRunner, pool: BlockPool, vocab_size: int) -> tuple[int, ...]:
    """Generate the canary's tokens; no request may be live, the pool is as before afterwards."""
    tokens = [index * vocab_size // PROMPT_LENGTH for index in range(PROMPT_LENGTH)]
    length = min(PROMPT_LENGTH + NUM_TOKENS, pool.num_blocks * pool.block_size)
    blocks = pool.allocate(pool.blocks_for(length))
    assert blocks is not None, "the canary runs alone"
    sampling = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    computed = 0
    try:
        while len(tokens) < length:
            share = ScheduledRequest(
                request_id="engine.canary",
                token_ids=tokens[computed:],
                start_position=computed,
                block_table=blocks,
                samples=True,
                sampling=sampling,
                num_output_tokens=len(tokens) - PROMPT_LENGTH,
            )
            computed = len(tokens)
            tokens.append(runner.execute([share]).token_ids["engine.canary"])
    finally:
        pool.free(blocks)
    return tuple(tokens[PROMPT_LENGTH:])
