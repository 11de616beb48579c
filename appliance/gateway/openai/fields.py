"""The support matrix of the generating routes: every request field and how it is treated.

A field is honoured, accepted because it cannot change the output, accepted at its neutral value
only, or refused by name. What is in none of the tables is unknown, see `parameters`.
"""

from appliance.gateway.openai.checks import (
    Check,
    allowed_token_ids,
    anything,
    array,
    bad_words,
    boolean,
    decimal,
    integer,
    json_object,
    logit_bias,
    one_of,
    only,
    refused,
    short_string,
    stop_strings,
    string,
    token_ids,
)
from appliance.gateway.openai.structured import STRUCTURED_FIELDS

MAX_CHOICES = 8
MAX_PROMPTS = 16
MAX_STOPS = 4
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_TOP_LOGPROBS = 20
MAX_COMPLETION_LOGPROBS = 5
MAX_TOKENS = 1 << 24
MAX_TOP_K = 1_000_000
MAX_LOGIT_BIASES = 1024
MAX_ALLOWED_TOKEN_IDS = 4096
MAX_BAD_WORDS = 64
MAX_BAD_WORD_CHARS = 128
MAX_CACHE_SALT_BYTES = 256
DEFAULT_COMPLETION_TOKENS = 16
SEEDS = integer(-(2**63), 2**63 - 1)

HONOURED: dict[str, Check] = {
    "model": string,
    "n": integer(1, MAX_CHOICES),
    "max_tokens": integer(1, MAX_TOKENS),
    "temperature": decimal(0, 2),
    "top_p": decimal(0, 1, above_low=True),
    "seed": SEEDS,
    "stop": stop_strings(MAX_STOPS, MAX_STOP_CHARS),
    "frequency_penalty": decimal(-2, 2),
    "presence_penalty": decimal(-2, 2),
    "logit_bias": logit_bias(MAX_LOGIT_BIASES),
    "stream": boolean,
    "stream_options": json_object,
    **STRUCTURED_FIELDS,
    # as vLLM has them
    "repetition_penalty": decimal(0.001, 2),
    "allowed_token_ids": allowed_token_ids(MAX_ALLOWED_TOKEN_IDS),
    "bad_words": bad_words(MAX_BAD_WORDS, MAX_BAD_WORD_CHARS),
    "prompt_logprobs": integer(0, MAX_TOP_LOGPROBS),
    "cache_salt": short_string(MAX_CACHE_SALT_BYTES),
    "priority": integer(-(2**31), 2**31 - 1),
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
    "max_tokens": integer(0, MAX_TOKENS),  # 0: only with `echo`
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
    "spaces_between_special_tokens": boolean,
    "stream_interval": integer(1, MAX_TOKENS),
}
NEUTRAL_ONLY: dict[str, Check] = {
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
