"""A few threads that compile grammars; who waits for one is told when its time is over."""

import logging
import queue
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from engine.clock import now_ns
from engine.core.structured_compile import CompiledGrammar
from engine.core.structured_faults import RefusedGrammarError
from engine.core.structured_tokenizer import TokenizerError
from engine.wire.messages import Grammar, RequestError

if TYPE_CHECKING:
    from engine.core.structured_request import GrammarProgress

logger = logging.getLogger(__name__)

COMPILE_THREADS = 2
JOIN_S = 0.5


class Compilation:
    """One grammar on its way, for all requests that ask for it.

    Args:
        key: Of the cache.
        grammar: What to compile.
        timeout_s: From now.
    """

    def __init__(self, key: bytes, grammar: Grammar, timeout_s: float) -> None:
        self.key = key
        self.grammar = grammar
        self.timeout_s = timeout_s
        self.give_up_ns = now_ns() + round(timeout_s * 1e9)
        self.compiled: CompiledGrammar | None = None
        self.fault: RequestError | None = None
        self.wanted_by: weakref.WeakSet[GrammarProgress] = weakref.WeakSet()
        self.stage: Literal["queued", "compiling", "over"] = "queued"
        """The pool's: it is over when it is settled, or given up, or nobody wants it."""


class CompilePool:
    """Compiles in the order of `submit`.

    Args:
        compile_grammar: Does it; raises RefusedGrammarError or TokenizerError.
        claim: Asked before a compilation starts: false when nobody wants it any more.
        settle: Called once for each other compilation, from a thread of the pool, with the grammar
            or the fault; the pool's lock is not held.
    """

    def __init__(
        self,
        compile_grammar: Callable[[Grammar], CompiledGrammar],
        claim: Callable[[Compilation], bool],
        settle: Callable[[Compilation, CompiledGrammar | RequestError], None],
    ) -> None:
        self._compile = compile_grammar
        self._claim = claim
        self._settle = settle
        self._queue: queue.SimpleQueue[Compilation | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._pending: dict[Compilation, None] = {}
        """Those that are not over."""
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def submit(self, compilation: Compilation) -> None:
        """Have it compiled."""
        with self._changed:
            if not self._threads:
                self._start("deadlines", self._watch)
                for _ in range(COMPILE_THREADS):
                    self._start("compile", self._work)
            self._pending[compilation] = None
            self._changed.notify_all()
        self._queue.put(compilation)

    def close(self) -> None:
        """End the threads; one that compiles ends when it comes back."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(JOIN_S)

    def _start(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=f"grammar-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    # ------------------------------------------------------------ compiling

    def _work(self) -> None:
        while (compilation := self._queue.get()) is not None:
            self._take(compilation)
            del compilation

    def _take(self, compilation: Compilation) -> None:
        if not self._begin(compilation):
            return
        outcome = self._outcome(compilation.grammar)
        with self._changed:
            in_time = compilation.stage == "compiling"
            self._end(compilation)
        if in_time:
            self._tell(compilation, outcome)

    def _begin(self, compilation: Compilation) -> bool:
        with self._changed:
            if compilation.stage != "queued":
                return False
            if not self._claim(compilation):
                self._end(compilation)
                return False
            compilation.stage = "compiling"
            return True

    def _end(self, compilation: Compilation) -> None:
        compilation.stage = "over"
        self._pending.pop(compilation, None)

    def _tell(self, compilation: Compilation, outcome: CompiledGrammar | RequestError) -> None:
        try:
            self._settle(compilation, outcome)
        except Exception:
            logger.exception("the outcome of a compilation could not be told")

    def _outcome(self, grammar: Grammar) -> CompiledGrammar | RequestError:
        try:
            return self._compile(grammar)
        except RefusedGrammarError as error:
            return RequestError(code="invalid_grammar", message=str(error))
        except TokenizerError as error:
            logger.warning("no structured output with this model: %s", error)
            message = "structured output is not possible with this model's tokenizer"
            return RequestError(code="invalid_request", message=message)
        except Exception:
            logger.exception("a grammar could not be compiled")
            message = "the grammar could not be compiled"
            return RequestError(code="internal_error", message=message)

    # ------------------------------------------------------------ deadlines

    def _watch(self) -> None:
        while (late := self._wait_for_late()) is not None:
            message = f"the grammar could not be compiled within {late.timeout_s:g} s"
            self._tell(late, RequestError(code="invalid_grammar", message=message))

    def _wait_for_late(self) -> Compilation | None:
        """Return the next compilation that has run out of time; None at the end."""
        with self._changed:
            while not self._is_closed:
                first = min(self._pending, key=lambda c: c.give_up_ns, default=None)
                left_ns = None if first is None else first.give_up_ns - now_ns()
                if first is not None and left_ns is not None and left_ns <= 0:
                    self._end(first)
                    return first
                self._changed.wait(None if left_ns is None else left_ns / 1e9)
        return None
