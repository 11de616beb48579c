"""A model without weights that looks at its KV cache: what a row can see must be its own history.

What is written to a slot is the token and the adapter that computed it. A row reads all of its
history through the block table, and the window through the window's table; anything else than
that history fails the test at once. The next token depends on the last few only, so that texts
repeat and guesses are sometimes right.
"""

import hashlib
from collections.abc import Sequence

from engine.core.batch import ScheduledRequest, StepResult
from engine.core.request import EngineRequest
from engine.wire.messages import TokenLogprobs

NUM_TOKENS = 6


def next_token(history: Sequence[int], adapter: str | None, banned: Sequence[int] = ()) -> int:
    """What follows a history."""
    text = repr((list(history[-2:]), len(history) % 13 == 0, adapter))
    token = hashlib.blake2b(text.encode(), digest_size=1).digest()[0] % NUM_TOKENS
    while token in banned:
        token = (token + 1) % NUM_TOKENS
    return token


def text_alone(request: EngineRequest, max_len: int) -> list[int]:
    """The output that a request gets when nobody else is there."""
    sampling, adapter = request.sampling, request.adapter_hash
    tokens = request.token_ids[: request.num_prompt_tokens]
    for count in range(sampling.max_tokens):
        ends = request.end_token_ids
        banned = ends if count < sampling.min_tokens else ()
        tokens.append(next_token(tokens, adapter, banned))
        if tokens[-1] in ends or len(tokens) == max_len:
            break
    return tokens[request.num_prompt_tokens :]


def logprobs_of(tokens: Sequence[int]) -> tuple[TokenLogprobs, ...]:
    """Recognisable entries, one for each token."""
    return tuple(TokenLogprobs(token_id=token, logprob=-float(token)) for token in tokens)


class SeeingRunner:
    """See the module."""

    block_size = 2

    def __init__(self, window: int | None = None) -> None:
        self.window = window
        self.faulty: set[str] = set()
        """These fail in their next step, and leave garbage in the slots that they wrote."""
        self._full: dict[tuple[int, int], tuple[int, str | None]] = {}
        self._windowed: dict[tuple[int, int], tuple[int, str | None]] = {}

    def load(self, progress: object) -> None:
        """Nothing to load."""

    def execute(self, batch: Sequence[ScheduledRequest]) -> StepResult:
        result = StepResult()
        for share in batch:
            self._write(share)
        for share in batch:  # after all writes: nobody may have written to another's slots
            self._see(share)
            if share.request_id in self.faulty:
                result.faults[share.request_id] = "as the test wants it"
                self._spoil(share)
            else:
                self._answer(share, result)
        self.faulty.clear()
        return result

    def _slots(self, share: ScheduledRequest, position: int) -> list[tuple[dict, tuple[int, int]]]:
        index, offset = divmod(position, self.block_size)
        slots = [(self._full, (share.block_table[index], offset))]
        if self.window is not None:
            block = share.window_table[index]
            assert block >= 0, "a slot of the window that is gone"
            slots.append((self._windowed, (block, offset)))
        return slots

    def _write(self, share: ScheduledRequest) -> None:
        for position, token in enumerate(share.token_ids, start=share.start_position):
            for cache, slot in self._slots(share, position):
                cache[slot] = (token, share.adapter)

    def _spoil(self, share: ScheduledRequest) -> None:
        for position in range(share.start_position, share.start_position + len(share.token_ids)):
            for cache, slot in self._slots(share, position):
                cache[slot] = (-1, None)

    def _see(self, share: ScheduledRequest) -> None:
        known = len(share.token_ids) - share.num_drafts
        assert list(share.token_ids[:known]) == list(
            share.history[share.start_position : share.start_position + known]
        )
        text = [*share.history[: share.start_position], *share.token_ids]
        first = max(0, share.start_position + 1 - (self.window or 0))
        for position, token in enumerate(text):
            slots = self._slots(share, position) if position >= first else []
            full = (share.block_table[position // self.block_size], position % self.block_size)
            for cache, slot in [(self._full, full), *slots]:
                assert cache[slot] == (token, share.adapter), (share.request_id, position)

    def _answer(self, share: ScheduledRequest, result: StepResult) -> None:
        name = share.request_id
        if share.prompt_logprobs is not None:
            first = share.start_position + 1
            end = min(first + len(share.token_ids), share.num_prompt_tokens)
            result.prompt_logprobs[name] = logprobs_of(share.history[first:end])
        if not share.samples:
            return
        tokens: list[int] = []
        drafts = share.token_ids[len(share.token_ids) - share.num_drafts :]
        for index in range(share.num_drafts + 1):
            history = [*share.history, *drafts[:index]]
            tokens.append(next_token(history, share.adapter, share.banned_token_ids))
            if index < share.num_drafts and drafts[index] != tokens[-1]:
                break
        result.token_ids[name] = tuple(tokens)
        if share.sampling.logprobs is not None:
            result.logprobs[name] = logprobs_of(tokens)
