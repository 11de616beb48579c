"""How much of prompts a step may take, so that decoding requests hardly notice.

A step lasts as long as what is in it: a decode that shares its step with a large chunk of a prompt
waits for the chunk. So the pace measures what steps of decodes alone last and what a prompt token
adds, and gives long prompts what stretches a step to `STRETCH` times its usual length.
"""

STRETCH = 1.7
"""Step beside decodes that is aimed at, as a multiple of a step of decodes alone: noise and growing
contexts then leave the 95th percentile of token gaps at about twice the usual, unless the smallest
chunk alone takes longer (`ops/bench/long_prompt.py`)."""
ALL_STRETCH = 2.4
"""The same for all prompts of a step together, short ones too: several that come at once are spread
over steps, so that the 99th percentile of token gaps stays below three times the median."""
_LEAST_TOKENS = 64
"""Of all prompts together a step may always take so many: with few decodes steps are short, and
pieces that keep them so would make everybody's prompt slow."""
_WEIGHT = 0.2
"""Of the newest step in the moving averages."""
_REFRESH_STEPS = 32
"""After so many steps with chunks in a row comes one of decodes alone, to measure those again."""


class ChunkPace:
    """Limits the prompt tokens of long prompts in a step.

    Args:
        threshold: A fixed limit; 0: measure.
        budget: Token budget of a step.
        smallest: Tokens that a step may always take, but for every `_REFRESH_STEPS`th.
    """

    def __init__(self, threshold: int, budget: int, smallest: int) -> None:
        self._threshold = threshold
        self._budget = budget
        self._smallest = min(smallest, budget)
        self._decode_ns: float | None = None
        self._prompt_token_ns: float | None = None
        self._mixed_steps = 0

    @property
    def long_above(self) -> int:
        """Prompts with more uncomputed tokens than this are long; others are not limited."""
        return self._threshold or self._budget // 4

    def limit(self) -> int:
        """Return how many tokens long prompts may take of a step that has decodes."""
        if self._threshold:
            return min(self._threshold, self._budget)
        if self._must_refresh:
            return 0
        if self._decode_ns is None or not self._prompt_token_ns:
            return max(self._budget // 4, self._smallest)
        tokens = int((STRETCH - 1.0) * self._decode_ns / self._prompt_token_ns)
        return max(self._smallest, min(tokens, self._budget))

    def limit_of_all(self) -> int:
        """Return how many tokens all prompts together may take of a step that has decodes."""
        if self._must_refresh:  # short ones would put the step of decodes alone off for ever
            return 0
        if self._threshold or self._decode_ns is None or not self._prompt_token_ns:
            return self._budget
        tokens = int((ALL_STRETCH - 1.0) * self._decode_ns / self._prompt_token_ns)
        return max(_LEAST_TOKENS, self._smallest, min(tokens, self._budget))

    @property
    def _must_refresh(self) -> bool:
        return not self._threshold and self._mixed_steps >= _REFRESH_STEPS

    def observe(self, prompt_tokens: int, decode_tokens: int, took_ns: int) -> None:
        """Learn from a step."""
        if not prompt_tokens:
            self._mixed_steps = 0
            self._decode_ns = _moved(self._decode_ns, took_ns)
            return
        self._mixed_steps += 1 if decode_tokens else 0
        if decode_tokens and self._decode_ns is not None:
            added_ns = max(took_ns - self._decode_ns, 1.0)
        elif prompt_tokens >= self.long_above:  # so large that what a step costs anyway is little
            added_ns = float(took_ns)
        else:
            return
        if prompt_tokens >= self._smallest:
            self._prompt_token_ns = _moved(self._prompt_token_ns, added_ns / prompt_tokens)


class StepBudget:
    """The tokens of a step that are not dealt out yet.

    Args:
        tokens: All of them.
        long_tokens: How many of them long prompts may take.
        long_above: Prompts with more uncomputed tokens than this are long.
    """

    def __init__(self, tokens: int, long_tokens: int, long_above: int) -> None:
        self.tokens = tokens
        self.long_tokens = long_tokens
        self._long_above = long_above

    def share(self, uncomputed_tokens: int) -> int:
        """Return how many of a prompt's uncomputed tokens may be computed."""
        count = min(uncomputed_tokens, self.tokens)
        return min(count, self.long_tokens) if uncomputed_tokens > self._long_above else count

    def take(self, uncomputed_tokens: int, count: int) -> None:
        """Deal `count` of a prompt's uncomputed tokens out."""
        self.tokens -= count
        if uncomputed_tokens > self._long_above:
            self.long_tokens -= count


def _moved(average: float | None, value: float) -> float:
    return value if average is None else average + _WEIGHT * (value - average)
