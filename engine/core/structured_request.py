"""One request's place in its grammar, and the mask of the tokens that may come next."""

import logging
import queue
import threading
from typing import TYPE_CHECKING

from engine.core.structured_compile import compute_mask
from engine.core.structured_pool import Compilation
from engine.wire.messages import RequestError

if TYPE_CHECKING:
    import numpy as np
    from llguidance import LLMatcher
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

MASK_THREADS = 2
NOT_ALLOWED = ("doesn't satisfy the grammar", "out of range")
"""In llguidance's errors; the other ones are of limits, see `LLParserLimits`."""


class MaskWorkers:
    """Threads that compute masks while the model runs; they start with the first mask."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[GrammarProgress | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def put(self, progress: "GrammarProgress") -> None:
        """Have a request's mask computed soon."""
        if not self._threads:
            self._threads = [
                threading.Thread(target=self._work, name=f"grammar-mask-{index}", daemon=True)
                for index in range(MASK_THREADS)
            ]
            for thread in self._threads:
                thread.start()
        self._queue.put(progress)

    def close(self) -> None:
        """End the threads; a mask takes milliseconds."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _work(self) -> None:
        while (progress := self._queue.get()) is not None:
            try:
                progress.mask()
            except Exception:
                logger.exception("a grammar's mask could not be computed ahead")
            del progress  # else an ended request would be kept until the next mask


class GrammarProgress:
    """A `batch.RequestGrammar`: ready when its compilation is, then a matcher of its own.

    A matcher that is used by two threads at once raises, so nothing touches it but under the lock:
    who comes first computes the mask, and the other finds it there.

    Args:
        compilation: Of the grammar, shared with other requests.
        workers: Compute masks ahead.
    """

    def __init__(self, compilation: Compilation, workers: MaskWorkers) -> None:
        self._compilation = compilation
        self._workers = workers
        self._lock = threading.Lock()
        self._matcher: LLMatcher | None = None
        self._mask: NDArray[np.int32] | None = None
        self._is_finished = False
        compilation.wanted_by.add(self)

    @property
    def is_ready(self) -> bool:
        """Whether the grammar is compiled."""
        return self._compilation.compiled is not None

    @property
    def fault(self) -> RequestError | None:
        """Why it never will be."""
        return self._compilation.fault

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the source is not enforced; known once ready."""
        compiled = self._compilation.compiled
        return () if compiled is None else compiled.warnings

    @property
    def is_finished(self) -> bool:
        """Whether the output is complete and nothing can follow but an end token."""
        return self._is_finished

    def begin_mask(self) -> None:
        """Compute the next mask in the background, unless it is there."""
        if self._mask is None and self._matcher is not None:  # the first came with the grammar
            self._workers.put(self)

    def mask(self) -> "NDArray[np.int32]":
        """Return the next mask; the same one until a token is accepted.

        Where the grammar can no longer be followed it has only end tokens, and `accept` says why.
        """
        with self._lock:
            if self._mask is None:
                self._mask = self._next_mask()
            return self._mask

    def accept(self, token_id: int) -> str | None:
        """Advance by a token; return why it was not allowed, or None."""
        with self._lock:
            matcher = self._own_matcher()
            self._mask = None
            # after an error, which computing a mask may be, it would still take an end token
            if matcher.is_error() or not matcher.consume_token(token_id):
                return _complaint(matcher)
            self._is_finished = matcher.is_stopped()
            return None

    def _next_mask(self) -> "NDArray[np.int32]":
        compiled = self._compilation.compiled
        assert compiled is not None, "only ready requests are scheduled"
        if self._matcher is None:
            return compiled.first_mask.copy()
        return compute_mask(self._matcher, compiled.tokenizer, compiled.vocab_size)

    def _own_matcher(self) -> "LLMatcher":
        if self._matcher is None:
            compiled = self._compilation.compiled
            assert compiled is not None, "only ready requests are scheduled"
            self._matcher = compiled.prototype.deep_copy()
        return self._matcher


def _complaint(matcher: "LLMatcher") -> str:
    """Say why a matcher failed; its own words would repeat the output."""
    error = matcher.get_error()
    if any(words in error for words in NOT_ALLOWED):
        return "the sampled token is not allowed by the grammar"
    return "the grammar became too complex to follow"
