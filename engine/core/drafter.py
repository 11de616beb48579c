"""Guesses the next tokens by prompt lookup: what followed the last few tokens before.

Costs no model. Code, quotes and structured texts repeat themselves; other texts rarely do, and then
nothing is guessed.
"""

from collections.abc import Sequence

from engine.core.request import EngineRequest

MIN_MATCH = 2
MAX_MATCH = 4
"""Tokens: longer matches are not told apart."""
MAX_CANDIDATES = 16
"""Earlier places that are looked at in one call, the latest first."""
MAX_INDEXED = 4096
"""Tokens indexed in one call: a long prompt is taken up over several steps."""


class Drafting:
    """The drafters of all requests.

    Args:
        max_drafts: Most guesses for one request in a step; 0: none are made.
    """

    def __init__(self, max_drafts: int) -> None:
        self.drafted = 0
        self.accepted = 0
        """Guesses that were right, cumulative."""
        self.max_drafts = max_drafts
        self._lookups: dict[str, PromptLookup] = {}

    def drafts(self, request: EngineRequest, limit: int, max_len: int) -> list[int]:
        """Return guesses for a request that decodes, at most `limit`.

        None where a guess could not be used: a grammar must see each token before the next, and no
        output goes beyond `max_tokens` or `max_len`. End tokens are banned in all rows of a step
        or in none.
        """
        if request.grammar is not None or request.sampling.prompt_logprobs is not None:
            return []
        sampling, num_output = request.sampling, request.num_output_tokens
        ends = (sampling.max_tokens - num_output, max_len - len(request.token_ids))
        count = min(limit, self.max_drafts, *(end - 1 for end in ends))
        if num_output < sampling.min_tokens:
            count = min(count, sampling.min_tokens - num_output - 1)
        if count < 1:
            return []
        lookup = self._lookups.setdefault(request.request_id, PromptLookup())
        return lookup.propose(request.token_ids, count)

    def note_result(self, request: EngineRequest, drafted: int, accepted: int) -> None:
        """Count the guesses of a step and those that were right."""
        request.drafted_tokens += drafted
        request.accepted_tokens += accepted
        self.drafted += drafted
        self.accepted += accepted

    def forget(self, request: EngineRequest) -> None:
        """Drop what was kept for a request."""
        self._lookups.pop(request.request_id, None)


class PromptLookup:
    """The drafter of one request: an index of its pairs of tokens, which grows with its history."""

    def __init__(self) -> None:
        self._latest: dict[tuple[int, int], int] = {}
        """Pair of tokens -> position after its latest occurrence."""
        self._earlier: list[int] = [0, 0]
        """By such a position: that of the occurrence before, or 0."""

    def propose(self, history: Sequence[int], max_tokens: int) -> list[int]:
        """Return at most `max_tokens` guesses of what comes next; often none.

        Args:
            history: Prompt and output so far; as in the last call, or longer.
            max_tokens: At least 1.
        """
        self._index(history)
        end = len(history)
        if end < MIN_MATCH:
            return []
        position = self._latest.get((history[-2], history[-1]), 0)
        best, best_length = 0, 0
        for _ in range(MAX_CANDIDATES):
            if position == 0 or best_length == MAX_MATCH:
                break
            length = _match_length(history, position, end)
            if length > best_length:
                best, best_length = position, length
            position = self._earlier[position]
        return list(history[best : best + max_tokens]) if best else []

    def _index(self, history: Sequence[int]) -> None:
        """Take up the pairs that end before the last token: its own pair is what is looked up."""
        first = len(self._earlier)
        for position in range(first, min(len(history), first + MAX_INDEXED)):
            pair = (history[position - 2], history[position - 1])
            self._earlier.append(self._latest.get(pair, 0))
            self._latest[pair] = position


def _match_length(history: Sequence[int], position: int, end: int) -> int:
    """Return how many tokens before `position` equal those before `end`, of which two are known."""
    length = MIN_MATCH
    while (
        length < MAX_MATCH
        and position > length
        and history[position - 1 - length] == history[end - 1 - length]
    ):
        length += 1
    return length
