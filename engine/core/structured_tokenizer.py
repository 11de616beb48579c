"""The model's tokens as llguidance wants them: built when the first grammar comes, once."""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from tokenizers import Tokenizer


class TokenizerError(Exception):
    """No grammar can be followed with this model's tokenizer."""


class TokenizerState(msgspec.Struct, frozen=True, array_like=True):
    """A `TokenizerBridge` on its way to another process."""

    definition: str
    """The tokenizer as JSON."""
    vocab_size: int
    eos_token_ids: list[int]

    def bridge(self) -> "TokenizerBridge":
        """Return it there."""
        from tokenizers import Tokenizer  # noqa: PLC0415 - the engine has one already

        def make() -> Tokenizer:
            return Tokenizer.from_str(self.definition)

        return TokenizerBridge(make, self.vocab_size, self.eos_token_ids)


class TokenizerBridge:
    """Builds llguidance's tokenizer and keeps it; safe to share between threads.

    Args:
        make: Builds the checkpoint's tokenizer.
        vocab_size: Width of the logits. The tokenizer may know fewer tokens (models pad their
            vocabulary) or more (of an image part that is not there).
        eos_token_ids: Any of these ends an output.
    """

    def __init__(
        self, make: Callable[[], "Tokenizer"], vocab_size: int, eos_token_ids: Sequence[int]
    ) -> None:
        self.vocab_size = vocab_size
        self._make = make
        self._eos_token_ids = [id_ for id_ in eos_token_ids if 0 <= id_ < vocab_size]
        self._lock = threading.Lock()
        self._built: LLTokenizer | None = None
        self._definition = ""

    def tokenizer(self) -> "LLTokenizer":
        """Return it; the first call blocks, for seconds if the vocabulary is large.

        Raises:
            TokenizerError: it cannot be built.
        """
        with self._lock:
            if self._built is None:
                self._built = self._build()
            return self._built

    def take_state(self) -> "TokenizerState":
        """Return what another process needs for a bridge of its own; once after each building.

        Raises:
            TokenizerError: as `tokenizer`.
        """
        self.tokenizer()
        definition, self._definition = self._definition, ""
        return TokenizerState(definition, self.vocab_size, self._eos_token_ids)

    @property
    def is_built(self) -> bool:
        """Whether `tokenizer` returns at once."""
        return self._built is not None

    def clear(self) -> None:
        """Give the memory back; the next grammar builds it again."""
        with self._lock:
            self._built = None

    def _build(self) -> "LLTokenizer":
        from llguidance import LLTokenizer  # noqa: PLC0415 - most engines never need it

        if not self._eos_token_ids:
            raise TokenizerError("the model has no token that could end an output")
        tokenizer = self._make()
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._definition = tokenizer.to_str()
        num_tokens = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
        try:
            return LLTokenizer(
                self._definition,
                n_vocab=max(self.vocab_size, num_tokens),  # it refuses to leave tokens out
                eos_token=self._eos_token_ids,
            )
        except ValueError as error:
            raise TokenizerError(f"its kind of tokenizer is not known: {error}") from error
