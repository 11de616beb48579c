"""Every request field: honoured, accepted because it cannot change the output, or refused by name.

The tables are the support matrix. A field that is in none of them is unknown: ignored, named in
the answer's header and counted, or refused with `strict_parameters`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from appliance.gateway.openai.checks import (
    Check,
    anything,
    array,
    boolean,
    decimal,
    integer,
    json_object,
    one_of,
    only,
    refused,
    stop_strings,
    string,
    text_format,
    token_ids,
)
from appliance.gateway.openai.errors import ApiError, invalid, missing
from engine.wire.messages import SamplingParams

MAX_CHOICES = 8
MAX_PROMPTS = 16
MAX_STOPS = 4
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_TOP_LOGPROBS = 20
MAX_COMPLETION_LOGPROBS = 5
MAX_TOKENS = 1 << 24
MAX_TOP_K = 1_000_000
DEFAULT_COMPLETION_TOKENS = 16
SEEDS = integer(-(2**63), 2**63 - 1)
SAFE_FIELD_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MAX_NAMED_FIELDS = 16

HONOURED: dict[str, Check] = {
    "model": string,
    "n": integer(1, MAX_CHOICES),
    "max_tokens": integer(1, MAX_TOKENS),
    "temperature": decimal(0, 2),
    "top_p": decimal(0, 1, above_low=True),
    "seed": SEEDS,
    "stop": stop_strings(MAX_STOPS, MAX_STOP_CHARS),
    "stream": boolean,
    "stream_options": json_object,
    # as vLLM has them
    "top_k": integer(-1, MAX_TOP_K),
    "min_p": decimal(0, 1),
    "min_tokens": integer(0, MAX_TOKENS),
    "stop_token_ids": token_ids(MAX_STOP_TOKEN_IDS),
    "include_stop_str_in_output": boolean,
    "ignore_eos": boolean,
    "skip_special_tokens": boolean,
    "add_special_tokens": boolean,
    "return_token_ids": boolean,
}
HONOURED_CHAT: dict[str, Check] = {
    "messages": array,
    "max_completion_tokens": integer(1, MAX_TOKENS),
    "logprobs": boolean,
    "top_logprobs": integer(0, MAX_TOP_LOGPROBS),
    "add_generation_prompt": boolean,
    "continue_final_message": boolean,
}
HONOURED_COMPLETION: dict[str, Check] = {
    "prompt": anything,  # four shapes, see `completions`
    "logprobs": integer(0, MAX_COMPLETION_LOGPROBS),
    "echo": boolean,
}

HARMLESS: dict[str, Check] = {
    "user": string,
    "metadata": json_object,
    "store": boolean,
    "service_tier": string,
    "safety_identifier": string,
    "prompt_cache_key": string,
    "prompt_cache_options": json_object,
    "prompt_cache_retention": string,
    "prediction": json_object,
    "parallel_tool_calls": boolean,
    "reasoning_effort": one_of("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    "include_reasoning": boolean,
    "separate_reasoning": boolean,
    "stream_reasoning": boolean,
    "request_id": string,
    "session_id": string,
    "rid": string,
    "cache_salt": string,
    "priority": integer(-(2**31), 2**31 - 1),
    "spaces_between_special_tokens": boolean,
    "stream_interval": integer(1, MAX_TOKENS),
}
NEUTRAL_ONLY: dict[str, Check] = {
    "frequency_penalty": only(decimal(-2, 2), 0),
    "presence_penalty": only(decimal(-2, 2), 0),
    "repetition_penalty": only(decimal(0, 2, above_low=True), 1),
    "logit_bias": only(json_object, {}),
    "response_format": text_format,
    "best_of": only(integer(1, 20), 1),
    "modalities": only(array, ["text"]),
    "tool_choice": only(anything, "none", "auto"),
    "function_call": only(anything, "none", "auto"),
    "verbosity": only(one_of("low", "medium", "high"), "medium"),
    "suffix": only(string, ""),
}
REFUSED = (
    "tools",
    "functions",
    "audio",
    "web_search_options",
    "moderation",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "json_schema",
    "regex",
    "ebnf",
    "stop_regex",
    "structural_tag",
    "prompt_embeds",
    "input_ids",
    "lora_path",
    "vllm_xargs",
    "mm_processor_kwargs",
    "truncate_prompt_tokens",
    "prompt_logprobs",
    "allowed_token_ids",
    "bad_words",
    "logprob_token_ids",
    "return_tokens_as_token_ids",
    "return_prompt_text",
    "return_meta_info",
    "no_stop_trim",
    "thinking_token_budget",
    "repetition_detection",
    "use_beam_search",
    "length_penalty",
)

COMMON: dict[str, Check] = {
    **HONOURED,
    **HARMLESS,
    **NEUTRAL_ONLY,
    **dict.fromkeys(REFUSED, refused),
}
CHAT_FIELDS: dict[str, Check] = {**COMMON, **HONOURED_CHAT}
COMPLETION_FIELDS: dict[str, Check] = {**COMMON, **HONOURED_COMPLETION}

STREAM_OPTIONS: dict[str, Check] = {
    "include_usage": boolean,
    "include_obfuscation": boolean,
    "continuous_usage_stats": boolean,
}


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

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean field."""
        value = self.fields.get(name, default)
        return bool(value)

    def sampling(self) -> SamplingParams:
        """How to sample; `max_tokens` is a place holder until the context's room is known."""
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
    logprobs = fields.get("logprobs")
    if logprobs is not None and fields.get("echo"):
        raise invalid("echo", "'echo' together with 'logprobs' is not supported by this server.")
    return _shared(fields, ignored, logprobs, strict=strict)


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
    min_tokens = fields.get("min_tokens", 0)
    if max_tokens is not None and min_tokens > max_tokens:
        raise invalid("min_tokens", f"'min_tokens' must not be greater than '{param}'.")
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
    )


def _stream_options(
    fields: Mapping[str, Any], *, stream: bool, strict: bool
) -> tuple[dict[str, bool], tuple[str, ...]]:
    if "stream_options" not in fields:
        return {}, ()
    if not stream:
        raise invalid("stream_options", "'stream_options' needs 'stream' to be true.")
    options = fields["stream_options"]
    return check_fields(options, STREAM_OPTIONS, strict=strict, prefix="stream_options.")
