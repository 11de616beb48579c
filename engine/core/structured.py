"""Structured output: grammars are compiled off the step loop and kept; requests follow them.

llguidance is imported, and the model's tokenizer built for it, when the first grammar comes.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from engine.core.structured_compile import CompiledGrammar, compile_grammar
from engine.core.structured_pool import Compilation, CompilePool
from engine.core.structured_request import GrammarProgress, MaskWorkers
from engine.core.structured_tokenizer import TokenizerBridge
from engine.core.structured_trial import GrammarTrials
from engine.wire.messages import Grammar, RequestError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_KEPT_GRAMMARS = 64


@dataclass(frozen=True, slots=True)
class GrammarCounts:
    """What became of compilations; requests that share one count once."""

    compiled: int = 0
    refused: int = 0
    """Faulty or given up."""


class GrammarCompiler:
    """Compiles the grammars of one engine. Safe to call from any thread.

    Args:
        checkpoint_tokenizer: Builds the model's tokenizer; called from a thread of the compiler.
        vocab_size: Width of the logits.
        eos_token_ids: Any of them may end a complete output.
        timeout_s: After which a compilation is given up, the wait for a free thread included.
        tokenizer_timeout_s: Time more for those that come before the tokenizer is built.
        on_ready: Called from a thread of the compiler whenever grammars are ready or refused.
    """

    def __init__(
        self,
        checkpoint_tokenizer: "Callable[[], Tokenizer]",
        vocab_size: int,
        eos_token_ids: Sequence[int],
        *,
        timeout_s: float,
        on_ready: Callable[[], None],
        tokenizer_timeout_s: float = 60.0,
    ) -> None:
        self._bridge = TokenizerBridge(checkpoint_tokenizer, vocab_size, eos_token_ids)
        self._trials: GrammarTrials | None = None
        self._trials_lock = threading.Lock()
        """Of the process and of what it is made from; held while they are built."""
        self._is_closed = False
        self._timeout_s = timeout_s
        self._tokenizer_timeout_s = tokenizer_timeout_s
        self._on_ready = on_ready
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, Compilation] = OrderedDict()
        """Compiled, the least recently asked for first."""
        self._on_the_way: dict[bytes, Compilation] = {}
        self._counts = GrammarCounts()
        self._pool = CompilePool(self._compile, self._claim, self._settle)
        self._masks = MaskWorkers()

    @property
    def counts(self) -> GrammarCounts:
        """Cumulative."""
        return self._counts

    @property
    def num_kept(self) -> int:
        """Compiled grammars that are in memory for the next request."""
        return len(self._kept)

    def start(self, grammar: Grammar) -> GrammarProgress:
        """Return the grammar of one request at its beginning; compiles only what is not known.

        Never blocks. Whoever drops what it returns before it is ready has nothing else to do.
        """
        key = hashlib.sha256(msgspec.msgpack.encode(grammar)).digest()
        with self._lock:
            compilation = self._known(key)
            is_new = compilation is None
            if compilation is None:
                extra_s = 0.0 if self._bridge.is_built else self._tokenizer_timeout_s
                compilation = Compilation(key, grammar, self._timeout_s + extra_s)
                self._on_the_way[key] = compilation
            progress = GrammarProgress(compilation, self._masks)
        if is_new:
            self._pool.submit(compilation)
        return progress

    def clear(self) -> None:
        """Give back the memory of what is kept: live requests keep theirs."""
        with self._lock:
            self._kept.clear()
        self._end_trials()

    def close(self) -> None:
        """End the threads and the process."""
        self._is_closed = True
        self._pool.close()
        self._masks.close()
        self._end_trials()

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        """Compile what a process of its own was able to compile."""
        while True:
            trials = self._ready_trials()
            try:
                trials.run(grammar, self._timeout_s)
            except OSError:
                if self._is_closed or self._end_trials(trials):
                    raise
                continue  # it did not die: `clear` ended it
            return compile_grammar(self._bridge, grammar)

    def _ready_trials(self) -> GrammarTrials:
        with self._trials_lock:
            if self._trials is None:
                try:
                    self._trials = GrammarTrials(self._bridge.take_state())
                except OSError:
                    self._bridge.clear()  # the state is gone
                    raise
            return self._trials

    def _end_trials(self, only: GrammarTrials | None = None) -> bool:
        """End the process, or only this one; return whether it was there. All is built again."""
        with self._trials_lock:
            trials = self._trials
            if only is not None and trials is not only:
                return False
            self._trials = None
            self._bridge.clear()
        if trials is not None:
            trials.close()
        return trials is not None

    def _known(self, key: bytes) -> Compilation | None:
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        return self._on_the_way.get(key)

    def _claim(self, compilation: Compilation) -> bool:
        """Tell the pool whether a request still waits for a compilation, else forget it."""
        with self._lock:
            if len(compilation.wanted_by):
                return True
            del self._on_the_way[compilation.key]
            return False

    def _settle(self, compilation: Compilation, outcome: CompiledGrammar | RequestError) -> None:
        with self._lock:
            del self._on_the_way[compilation.key]
            counts = self._counts
            if isinstance(outcome, RequestError):
                compilation.fault = outcome
                self._counts = replace(counts, refused=counts.refused + 1)
            else:
                compilation.compiled = outcome
                self._counts = replace(counts, compiled=counts.compiled + 1)
                self._keep(compilation)
        self._on_ready()

    def _keep(self, compilation: Compilation) -> None:
        self._kept[compilation.key] = compilation
        while len(self._kept) > MAX_KEPT_GRAMMARS:
            self._kept.popitem(last=False)
