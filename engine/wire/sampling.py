"""How a request's tokens are chosen, as it travels to the engine."""

from enum import StrEnum

from engine.wire.body import Body


class SamplingParams(Body, frozen=True):
    """How the next token is chosen. Bounds are checked at the front and again at the engine."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """None: no logprobs. k: the chosen token's and the k best tokens'."""
    prompt_logprobs: int | None = None
    """As `logprobs`, for every prompt token after the first; the prefix cache is not read then."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output; 1 is off."""
    frequency_penalty: float = 0.0
    """Subtracted once for each time that a token is in the output."""
    presence_penalty: float = 0.0
    """Subtracted once from tokens that are in the output."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, added to its logit)."""
    allowed_token_ids: tuple[int, ...] = ()
    """Nothing else may be chosen; empty: no limit."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that may not be completed."""


class GrammarKind(StrEnum):
    """What the source of a grammar is written in."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    """Any JSON object; the source is empty."""
    REGEX = "regex"
    CHOICE = "choice"
    """The source is a JSON list of strings."""
    LARK = "lark"


class Grammar(Body, frozen=True):
    """What the output must match."""

    kind: GrammarKind
    source: str = ""
    lenient: bool = False
    """Ignore the schema keywords that cannot be enforced instead of refusing the schema."""
    compact: bool = False
    """No white space between the parts of a JSON text."""
