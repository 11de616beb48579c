"""How `LLM` is asked to sample: names and defaults as users of vLLM know them."""

from typing import Any

import msgspec

from engine.text.answer import AnswerRules
from engine.wire.messages import Grammar, GrammarKind
from engine.wire.messages import SamplingParams as WireParams

MAX_CHOICES = 64


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the text must match: exactly one of the fields."""

    json: dict[str, Any] | str | None = None
    """A JSON schema, as an object or as text."""
    json_object: bool = False
    """Any JSON object."""
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    """Lark."""

    def __post_init__(self) -> None:
        if len(self._given()) != 1:
            raise ValueError(
                "structured outputs need one of json, json_object, regex, choice, grammar"
            )

    def wire(self) -> Grammar:
        """Return it as the engine takes it."""
        ((kind, source),) = self._given()
        return Grammar(kind=kind, source=source)

    def _given(self) -> list[tuple[GrammarKind, str]]:
        given: list[tuple[GrammarKind, str]] = []
        if self.json is not None:
            given.append((GrammarKind.JSON_SCHEMA, _as_json(self.json)))
        if self.json_object:
            given.append((GrammarKind.JSON_OBJECT, ""))
        if self.regex is not None:
            given.append((GrammarKind.REGEX, self.regex))
        if self.choice is not None:
            given.append((GrammarKind.CHOICE, _as_json(self.choice)))
        if self.grammar is not None:
            given.append((GrammarKind.LARK, self.grammar))
        return given


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to generate from one prompt.

    Raises:
        ValueError: a value is out of bounds that does not depend on the model.
    """

    n: int = 1
    """Answers; with a seed, each has its own, `seed + i`."""
    max_tokens: int | None = 16
    """Of each answer; None: to the end of the context."""
    min_tokens: int = 0
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1: all."""
    min_p: float = 0.0
    seed: int | None = None
    stop: str | tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    """Words that may not come."""
    structured_outputs: StructuredOutputs | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.n <= MAX_CHOICES:
            raise ValueError(f"n must be within 1 and {MAX_CHOICES}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError("max_tokens must be at least 1")
        if not self.temperature >= 0:
            raise ValueError("temperature must be at least 0")
        if any(not stop for stop in self.stops):
            raise ValueError("a stop string is empty")

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def rules(self) -> AnswerRules:
        """How its tokens become text."""
        return AnswerRules(
            stop=self.stops,
            include_stop=self.include_stop_str_in_output,
            skip_special_tokens=self.skip_special_tokens,
            min_tokens=self.min_tokens,
        )

    def grammar(self) -> Grammar | None:
        """What the text must match."""
        return None if self.structured_outputs is None else self.structured_outputs.wire()

    def wire(
        self, choice: int, room: int, bad_words: tuple[tuple[int, ...], ...] = ()
    ) -> WireParams:
        """Return the engine's parameters of one answer.

        Args:
            choice: Which of the `n`.
            room: Tokens that the context has left.
            bad_words: The token sequences of `bad_words`.
        """
        max_tokens = room if self.max_tokens is None else min(self.max_tokens, room)
        return WireParams(
            max_tokens=max_tokens,
            min_tokens=min(self.min_tokens, max_tokens),
            temperature=self.temperature,
            top_k=self.top_k if self.top_k > 0 else None,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=None if self.seed is None else wrap_int64(self.seed + choice),
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs if choice == 0 else None,
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            logit_bias=tuple(sorted(self.logit_bias.items())),
            allowed_token_ids=tuple(self.allowed_token_ids),
            bad_words=bad_words,
        )


def _as_json(value: Any) -> str:
    """Return what is text already as it is."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def wrap_int64(value: int) -> int:
    """Return a seed that fits, as the endpoint does."""
    return (value + 2**63) % 2**64 - 2**63
