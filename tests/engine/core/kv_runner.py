"""A model runner without a model: its KV cache holds tokens, and a wrong block table shows.

The next token is a hash of all tokens read back from the cache through the block table, so it is
right only if every position of the request was written and nobody overwrote it.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Literal

from tokenizers import Tokenizer

from engine.core.batch import (
    ConfigError,
    DeviceFatalError,
    ModelFacts,
    Progress,
    ScheduledRequest,
    StepResult,
)
from engine.wire.messages import TokenLogprob, TokenLogprobs
from tests.tiny_model import make_tokenizer

VOCAB = 500
EOS = 2
POISON = 499
"""A prompt with this token makes the whole step raise."""
FAULTY = 498
"""A prompt with this token is reported as a fault of its request."""
FATAL = 497
"""A prompt with this token breaks the device."""
SLOW = 496
"""A prompt with this token makes each of its steps take `SLOW_STEP_S`."""
SLOW_STEP_S = 0.02
WEIGHTS_BYTES = 1 << 20


def next_token(tokens: Sequence[int], banned: Sequence[int] = ()) -> int:
    """The oracle: what follows `tokens`."""
    digest = hashlib.blake2b(repr(list(tokens)).encode(), digest_size=4).digest()
    token = int.from_bytes(digest) % (VOCAB - 10)
    while token in banned:
        token = (token + 1) % (VOCAB - 10)
    return token


def oracle(prompt: Sequence[int], max_tokens: int, ends: Sequence[int] = ()) -> list[int]:
    """All output tokens of a request."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens))
        if tokens[-1] in ends:
            break
    return tokens[len(prompt) :]


class KvRunner:
    """See the module."""

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 4,
        max_model_len: int = 200,
        load_error: str | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.load_error = load_error
        self.batches: list[list[ScheduledRequest]] = []
        self.loaded = False
        self.spoiled = False
        self._cache: dict[tuple[int, int], int] = {}

    def load(self, progress: Progress) -> ModelFacts:
        if self.load_error:
            raise ConfigError(self.load_error)
        progress("weights", 0, WEIGHTS_BYTES)
        progress("weights", WEIGHTS_BYTES, WEIGHTS_BYTES)
        self.loaded = True
        return ModelFacts(
            architecture="hash",
            vocab_size=VOCAB,
            max_model_len=self.max_model_len,
            dtype="float32",
            device="cpu",
            kernel_backend="hash",
            weights_bytes=WEIGHTS_BYTES,
            kv_cache_bytes=0,
            num_blocks=self.num_blocks,
            eos_token_ids=(EOS,),
        )

    def tokenizer(self) -> Tokenizer:
        return make_tokenizer()

    def adapter_store(self, on_ready: Callable[[], None]) -> None:
        return None

    def execute(self, batch: Sequence[ScheduledRequest]) -> StepResult:
        assert self.loaded, "asleep"
        self.batches.append(list(batch))
        result = StepResult()
        for share in batch:
            self._execute_share(share, result)
        return result

    def _execute_share(self, share: ScheduledRequest, result: StepResult) -> None:
        for offset, token in enumerate(share.token_ids):
            self._cache[self._slot(share, share.start_position + offset)] = token
        length = share.start_position + len(share.token_ids)
        tokens = [self._cache[self._slot(share, position)] for position in range(length)]
        if POISON in tokens:
            raise RuntimeError("poison")
        if FATAL in tokens:
            raise DeviceFatalError("the device is gone")
        if SLOW in tokens:
            time.sleep(SLOW_STEP_S)
        if FAULTY in tokens:
            result.faults[share.request_id] = "the sampler failed"
        elif share.samples:
            self._sample(share, tokens, result)

    def _sample(self, share: ScheduledRequest, tokens: list[int], result: StepResult) -> None:
        """Keep tokens up to the first that differs from its draft."""
        sampled: list[int] = []
        for known in range(len(tokens) - share.num_drafts, len(tokens) + 1):
            sampled.append(next_token(tokens[:known], share.banned_token_ids) + self.spoiled)
            if known < len(tokens) and tokens[known] != sampled[-1]:
                break
        result.token_ids[share.request_id] = tuple(sampled)
        if share.sampling.logprobs is not None:
            result.logprobs[share.request_id] = tuple(
                TokenLogprobs(
                    token_id=token,
                    logprob=-0.5,
                    top=(TokenLogprob(token_id=token, logprob=-0.5),) * share.sampling.logprobs,
                )
                for token in sampled
            )

    def _slot(self, share: ScheduledRequest, position: int) -> tuple[int, int]:
        return share.block_table[position // self.block_size], position % self.block_size

    def release(self, level: Literal[1, 2]) -> None:
        self.loaded = False
        self._cache.clear()

    def restore(self, progress: Progress) -> None:
        progress("weights", WEIGHTS_BYTES, WEIGHTS_BYTES)
        self.loaded = True

    def resident_bytes(self) -> int:
        return 5_000_000 + WEIGHTS_BYTES * self.loaded
