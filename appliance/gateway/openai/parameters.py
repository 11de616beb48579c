"""What a request asks for: its fields checked, and what follows from several of them together.

The tables are in `fields`. A field that is in none of them is unknown: ignored, named in the
answer's header and counted, or refused with `strict_parameters`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from appliance.gateway.openai.checks import Check
from appliance.gateway.openai.errors import ApiError, invalid, missing
from appliance.gateway.openai.fields import CHAT_FIELDS, COMPLETION_FIELDS, STREAM_OPTIONS
from appliance.gateway.openai.structured import STRUCTURED_FIELDS, grammar_of
from engine.wire.messages import Grammar, SamplingParams

SAFE_FIELD_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MAX_NAMED_FIELDS = 16


@dataclass(frozen=True, slots=True)
class Parameters:
    """The fields that all generating routes share, checked; the route reads the rest itself."""

    fields: Mapping[str, Any]
    """Checked values by name; null and absent ones are not in it."""
    ignored: tuple[str, ...]
    model: str
    n: int
    max_tokens: int | None
    max_tokens_param: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    stop: tuple[str, ...]
    logprobs: int | None
    prompt_logprobs: int | None
    """Candidates for each prompt token, for the field of that name or for an echo."""
    grammar: Grammar | None

    @property
    def cache_salt(self) -> str | None:
        """Who may share cached prefixes."""
        return self.fields.get("cache_salt")

    @property
    def priority(self) -> int:
        """Lower runs first."""
        return self.fields.get("priority", 0)

    @property
    def bad_words(self) -> tuple[str, ...]:
        """What the answer may not contain, as text."""
        return self.fields.get("bad_words", ())

    @property
    def generates(self) -> bool:
        """Whether an answer is wanted; else the prompt is only scored."""
        return self.max_tokens != 0

    @property
    def grammar_param(self) -> str:
        """The field that brought the grammar."""
        given = (name for name in STRUCTURED_FIELDS if self.fields.get(name) is not None)
        return next(given, "response_format")

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean field."""
        value = self.fields.get(name, default)
        return bool(value)

    def sampling(self) -> SamplingParams:
        """How to sample.

        `max_tokens` is a place holder until the context's room is known; `bad_words` are added
        by who has a tokenizer.
        """
        fields = self.fields
        top_k = fields.get("top_k", -1)
        return SamplingParams(
            max_tokens=self.max_tokens or 1,
            min_tokens=fields.get("min_tokens", 0),
            temperature=fields.get("temperature", 1.0),
            top_k=top_k if top_k > 0 else None,
            top_p=fields.get("top_p", 1.0),
            min_p=fields.get("min_p", 0.0),
            seed=fields.get("seed"),
            stop_token_ids=fields.get("stop_token_ids", ()),
            ignore_eos=fields.get("ignore_eos", False),
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            repetition_penalty=fields.get("repetition_penalty", 1.0),
            frequency_penalty=fields.get("frequency_penalty", 0.0),
            presence_penalty=fields.get("presence_penalty", 0.0),
            logit_bias=fields.get("logit_bias", ()),
            allowed_token_ids=fields.get("allowed_token_ids", ()),
        )


def check_fields(
    body: Mapping[str, Any], table: Mapping[str, Check], *, strict: bool, prefix: str = ""
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the checked fields and the paths of unknown ones; `prefix` is the object's own path.

    Raises:
        ApiError: a known field is wrong, or an unknown one is there and `strict` forbids it.
    """
    values: dict[str, Any] = {}
    unknown: list[str] = []
    for name, value in body.items():
        check = table.get(name)
        if check is None:
            unknown.append(prefix + name)
        elif value is not None:
            values[name] = check(value, prefix + name)
    if unknown and strict:
        param = _nameable(unknown)[0]
        raise ApiError("unknown_parameter", "The request has an unknown parameter.", param=param)
    return values, tuple(_nameable(unknown))


def _nameable(names: Iterable[str]) -> list[str]:
    """The first names as they are safe in a header; others are shown as `other`."""
    few = islice(names, MAX_NAMED_FIELDS)
    safe = (name if SAFE_FIELD_NAME.fullmatch(name) else "other" for name in few)
    return list(dict.fromkeys(safe))


def parse_chat_parameters(body: Mapping[str, Any], *, strict: bool) -> Parameters:
    """Check the body of a chat request, but for its messages."""
    fields, ignored = check_fields(body, CHAT_FIELDS, strict=strict)
    top = fields.get("top_logprobs", 0)
    has_logprobs = fields.get("logprobs", False)
    if top and not has_logprobs:
        raise invalid("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")
    return _shared(fields, ignored, top if has_logprobs else None, strict=strict)


def parse_completion_parameters(body: Mapping[str, Any], *, strict: bool) -> Parameters:
    """Check the body of a completion request, but for its prompt."""
    fields, ignored = check_fields(body, COMPLETION_FIELDS, strict=strict)
    if fields.get("max_tokens") == 0 and not fields.get("echo"):
        message = "'max_tokens' must be at least 1, unless 'echo' is true."
        raise ApiError("integer_below_min_value", message, param="max_tokens")
    return _shared(fields, ignored, fields.get("logprobs"), strict=strict)


def _shared(
    fields: Mapping[str, Any], ignored: tuple[str, ...], logprobs: int | None, *, strict: bool
) -> Parameters:
    if "model" not in fields:
        raise missing("model")
    stream = fields.get("stream", False)
    options, ignored_options = _stream_options(fields, stream=stream, strict=strict)
    wins = "max_completion_tokens" in fields
    param = "max_completion_tokens" if wins else "max_tokens"
    max_tokens = fields.get(param)
    _check_together(fields, max_tokens, param, stream=stream)
    return Parameters(
        fields=fields,
        ignored=ignored + ignored_options,
        model=fields["model"],
        n=fields.get("n", 1),
        max_tokens=max_tokens,
        max_tokens_param=param,
        stream=stream,
        include_usage=options.get("include_usage", False),
        continuous_usage=options.get("continuous_usage_stats", False),
        stop=fields.get("stop", ()),
        logprobs=logprobs,
        prompt_logprobs=_prompt_logprobs(fields, logprobs),
        grammar=grammar_of(fields),
    )


def _check_together(
    fields: Mapping[str, Any], max_tokens: int | None, max_param: str, *, stream: bool
) -> None:
    """Raise ApiError when two fields exclude each other."""
    if max_tokens is not None and fields.get("min_tokens", 0) > max_tokens:
        raise invalid("min_tokens", f"'min_tokens' must not be greater than '{max_param}'.")
    if stream and "prompt_logprobs" in fields:
        message = "'prompt_logprobs' cannot be had together with 'stream'."
        raise invalid("prompt_logprobs", message)


def _prompt_logprobs(fields: Mapping[str, Any], logprobs: int | None) -> int | None:
    """Candidates for each prompt token: as many as the greediest reader wants."""
    asked: int | None = fields.get("prompt_logprobs")
    if not fields.get("echo") or logprobs is None:
        return asked
    return logprobs if asked is None else max(asked, logprobs)


def _stream_options(
    fields: Mapping[str, Any], *, stream: bool, strict: bool
) -> tuple[dict[str, bool], tuple[str, ...]]:
    if "stream_options" not in fields:
        return {}, ()
    if not stream:
        raise invalid("stream_options", "'stream_options' needs 'stream' to be true.")
    options = fields["stream_options"]
    return check_fields(options, STREAM_OPTIONS, strict=strict, prefix="stream_options.")
