"""Bad input gets a 400 in the OpenAI shape, by name, and the engine never hears of it."""

import json

import pytest

from appliance.gateway.openai.errors import ApiError
from appliance.gateway.openai.fields import REFUSED
from appliance.gateway.openai.messages import parse_messages
from appliance.gateway.openai.parameters import parse_chat_parameters, parse_completion_parameters
from tests.appliance.gateway.stand import CHAT, running

HUGE = 2**31, 2**63, 10**30
WRONG_TYPES = "5", True, [], {}, 1.5
BELOW, ABOVE = "below_min_value", "above_max_value"

INTEGERS = {
    "n": (1, 8),
    "max_tokens": (1, 1 << 24),
    "max_completion_tokens": (1, 1 << 24),
    "top_logprobs": (0, 20),
    "top_k": (-1, 1_000_000),
    "min_tokens": (0, 1 << 24),
    "seed": (-(2**63), 2**63 - 1),
    "best_of": (1, 20),
    "priority": (-(2**31), 2**31 - 1),
    "prompt_logprobs": (0, 20),
}
DECIMALS = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "repetition_penalty": (0, 2),
}


def refusal(**fields: object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_chat_parameters({**CHAT, **fields}, strict=False)
    return caught.value


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_strictly_typed_and_bounded(name):
    low, high = INTEGERS[name]
    wrong = {
        **dict.fromkeys((low - 1, -(10**30)), f"integer_{BELOW}"),
        **{value: f"integer_{ABOVE}" for value in (high + 1, *HUGE) if value > high},
    }
    for value, code in wrong.items():
        error = refusal(**{name: value})
        assert (error.status, error.code, error.param) == (400, code, name)
    for value in (*WRONG_TYPES, 1e308, 1.0):
        error = refusal(**{name: value})
        assert (error.status, error.code, error.param) == (400, "invalid_type", name)


@pytest.mark.parametrize("name", DECIMALS)
def test_decimals_are_strictly_typed_and_bounded(name):
    low, high = DECIMALS[name]
    for value, side in ((low - 1, BELOW), (high + 1, ABOVE), (1e308, ABOVE), (2**63, ABOVE)):
        error = refusal(**{name: value})
        assert (error.status, error.code, error.param) == (400, f"decimal_{side}", name)
    for value in ("5", True, [], {}):
        error = refusal(**{name: value})
        assert (error.status, error.code, error.param) == (400, "invalid_type", name)


@pytest.mark.parametrize("name", [*INTEGERS, *DECIMALS])
def test_null_means_absent(name):
    assert name not in parse_chat_parameters({**CHAT, name: None}, strict=True).fields


def test_completion_logprobs_are_at_most_five():
    body = {"model": "tiny", "prompt": "a"}
    for value, code in ((6, "integer_above_max_value"), (-1, "integer_below_min_value")):
        with pytest.raises(ApiError) as caught:
            parse_completion_parameters({**body, "logprobs": value}, strict=False)
        assert caught.value.code == code


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(name):
    error = refusal(**{name: {"a": 1}})

    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", name)
    parse_chat_parameters({**CHAT, name: None}, strict=True)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"best_of": 2}, "best_of", "unsupported_value"),
        ({"suffix": "x"}, "suffix", "unsupported_value"),
        ({"modalities": ["audio"]}, "modalities", "unsupported_value"),
        ({"tool_choice": "required"}, "tool_choice", "unsupported_value"),
        ({"response_format": {"type": "?"}}, "response_format.type", "invalid_value"),
        ({"response_format": {}}, "response_format.type", "missing_required_parameter"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        (
            {"stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
            "invalid_type",
        ),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens", "invalid_value"),
        ({"stop": ["a"] * 5}, "stop", "array_above_max_length"),
        ({"stop": ""}, "stop", "empty_string"),
        ({"stop": [1]}, "stop", "invalid_type"),
        ({"stop": "x" * 2000}, "stop", "string_above_max_length"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "integer_below_min_value"),
        ({"stop_token_ids": [True]}, "stop_token_ids", "invalid_type"),
        ({"stream": "true"}, "stream", "invalid_type"),
        ({"model": 5}, "model", "invalid_type"),
        ({"model": None}, "model", "missing_required_parameter"),
    ],
)
def test_each_rule_names_its_parameter(fields, param, code):
    error = refusal(**fields)

    assert (error.status, error.param, error.code) == (400, param, code)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "functions": []},
        {"frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1},
        {"logit_bias": {}, "response_format": {"type": "text"}, "modalities": ["text"]},
        {"tool_choice": "none", "parallel_tool_calls": True, "user": "u", "metadata": {"a": "b"}},
        {"top_k": -1, "min_p": 0, "ignore_eos": True, "return_token_ids": False},
        {"seed": -(2**63), "temperature": 0, "top_p": 1},
    ],
)
def test_what_changes_nothing_is_accepted(fields):
    assert parse_chat_parameters({**CHAT, **fields}, strict=True).ignored == ()


@pytest.mark.parametrize(
    ("messages", "param", "code"),
    [
        ([], "messages", "empty_array"),
        (["x"], "messages[0]", "invalid_type"),
        ([{"content": "x"}], "messages[0].role", "missing_required_parameter"),
        ([{"role": "king", "content": "x"}], "messages[0].role", "invalid_value"),
        ([{"role": "tool", "content": "x"}], "messages[0].role", "unsupported_value"),
        ([{"role": "user"}], "messages[0].content", "missing_required_parameter"),
        ([{"role": "user", "content": 5}], "messages[0].content", "invalid_type"),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            "messages[0].content[0].type",
            "unsupported_value",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"id": "a"}]}],
            "messages[0].tool_calls",
            "unsupported_parameter",
        ),
    ],
)
def test_each_message_is_checked_by_its_path(messages, param, code):
    with pytest.raises(ApiError) as caught:
        parse_messages(messages)

    assert (caught.value.param, caught.value.code) == (param, code)


def test_parts_are_joined_and_absent_tool_calls_are_absent():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    given = [
        {"role": "developer", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": []},
    ]

    assert parse_messages(given) == [
        {"role": "system", "content": "a\nb"},
        {"role": "assistant", "content": ""},
    ]


RAW_BODIES = [
    b"",
    b"[]",
    b'"x"',
    b"{",
    b'{"a":1, x}',
    b'{"model": "tiny", "messages": [], "temperature": NaN}',
    b'{"model": "tiny", "messages": [], "temperature": Infinity}',
    b'{"model": "\\ud800"}',
    b'{"a":' * 100 + b"1" + b"}" * 100,
    b"[" * 100_000,
    b'{"n": 1e999}',
]


@pytest.mark.anyio
async def test_over_http_every_refusal_has_the_openai_shape(run_dir, tiny_model_path):
    bodies = [
        *RAW_BODIES,
        *(
            json.dumps({**CHAT, **fields}).encode()
            for fields in ({"n": 9}, {"temperature": "SECRET"}, {"tools": [{"SECRET": 1}]})
        ),
    ]
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()
        for body in bodies:
            answer = await http.post(
                "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
            )
            assert answer.status_code == 400, body[:40]
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
            assert "SECRET" not in answer.text
            assert len(answer.content) < 1024
            assert answer.headers["x-request-id"].startswith("req-")
        counts = await stand.supervisor.totals(len(bodies))
        assert counts["received"] == counts["rejected"] == len(bodies)
        assert not stand.engine.received


BAD_PROMPTS = (
    ("", "empty_string"),
    ([], "empty_array"),
    ([[]], "empty_array"),
    (5, "invalid_type"),
    (["a", [1]], "invalid_type"),
    ([1, "a"], "invalid_type"),
    ([True], "invalid_type"),
    ([-1], "integer_below_min_value"),
    ([10**9], "invalid_value"),
    ([2**40], "integer_above_max_value"),
    ([[1, 512]], "invalid_value"),
    (["a"] * 17, "array_above_max_length"),
    (None, "missing_required_parameter"),
)


@pytest.mark.anyio
async def test_bad_prompts_are_refused(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()
        for prompt, code in BAD_PROMPTS:
            answer = await http.post("/v1/completions", json={"model": "tiny", "prompt": prompt})

            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (400, code, "prompt")


@pytest.mark.anyio
async def test_stop_token_ids_must_be_in_the_vocabulary(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()

        answer = await http.post("/v1/chat/completions", json={**CHAT, "stop_token_ids": [99999]})

        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "stop_token_ids"
