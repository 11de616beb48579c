"""The request fields of sampling: what reaches the engine, what is refused, what is answered."""

import json

import msgspec
import pytest

from appliance.gateway.openai.errors import ApiError
from appliance.gateway.openai.parameters import parse_chat_parameters, parse_completion_parameters
from engine.wire.messages import AddRequest, FinishReason, RequestError, RequestOutput
from tests.appliance.gateway.stand import CHAT, FAST, running

COMPLETION = {"model": "tiny", "prompt": "The capital of France"}


def refusal(**fields: object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_chat_parameters({**CHAT, **fields}, strict=False)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"logit_bias": [1]}, "logit_bias", "invalid_type"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"01": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"1": "2"}}, "logit_bias", "invalid_type"),
        ({"logit_bias": {"1": True}}, "logit_bias", "invalid_type"),
        ({"logit_bias": {"1": 100.5}}, "logit_bias", "decimal_above_max_value"),
        ({"logit_bias": {"1": -101}}, "logit_bias", "decimal_below_min_value"),
        (
            {"logit_bias": {str(at): 0 for at in range(1025)}},
            "logit_bias",
            "array_above_max_length",
        ),
        ({"allowed_token_ids": []}, "allowed_token_ids", "empty_array"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids", "integer_below_min_value"),
        ({"allowed_token_ids": ["1"]}, "allowed_token_ids", "invalid_type"),
        ({"allowed_token_ids": [1] * 5000}, "allowed_token_ids", "array_above_max_length"),
        ({"bad_words": "x"}, "bad_words", "invalid_type"),
        ({"bad_words": [1]}, "bad_words", "invalid_type"),
        ({"bad_words": [" "]}, "bad_words", "empty_string"),
        ({"bad_words": ["x" * 129]}, "bad_words", "string_above_max_length"),
        ({"bad_words": ["x"] * 65}, "bad_words", "array_above_max_length"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "integer_above_max_value"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "invalid_value"),
        ({"cache_salt": ""}, "cache_salt", "empty_string"),
        ({"cache_salt": "é" * 129}, "cache_salt", "string_above_max_length"),
        ({"cache_salt": 5}, "cache_salt", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
    ],
)
def test_each_rule_names_its_parameter(fields, param, code):
    error = refusal(**fields)

    assert (error.status, error.param, error.code) == (400, param, code)


def test_no_tokens_are_wanted_only_with_an_echo():
    with pytest.raises(ApiError) as caught:
        parse_completion_parameters({**COMPLETION, "max_tokens": 0}, strict=False)

    scored = parse_completion_parameters({**COMPLETION, "max_tokens": 0, "echo": True}, strict=True)
    assert caught.value.code == "integer_below_min_value"
    assert not scored.generates
    assert parse_completion_parameters(COMPLETION, strict=True).generates


def test_an_echo_with_logprobs_asks_for_the_prompts():
    def asked(**fields: object) -> int | None:
        return parse_completion_parameters({**COMPLETION, **fields}, strict=True).prompt_logprobs

    assert asked() is None
    assert asked(echo=True) is None
    assert asked(logprobs=3) is None
    assert asked(echo=True, logprobs=0) == 0
    assert asked(echo=True, logprobs=3, prompt_logprobs=1) == 3
    assert asked(echo=True, logprobs=1, prompt_logprobs=9) == 9
    assert asked(prompt_logprobs=0) == 0


FIELDS = {
    "temperature": 0.5,
    "top_p": 0.75,
    "top_k": 5,
    "min_p": 0.125,
    "seed": 3,
    "max_tokens": 4,
    "min_tokens": 2,
    "stop_token_ids": [7],
    "ignore_eos": True,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.25,
    "repetition_penalty": 1.5,
    "logit_bias": {"9": -100, "3": 2},
    "allowed_token_ids": [40, 3, 40],
    "cache_salt": "tenant é",
    "priority": -7,
}


@pytest.mark.anyio
async def test_every_field_reaches_the_engine(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()

        for url, body in (("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)):
            answer = await http.post(url, json={**body, **FIELDS})

            assert answer.status_code == 200, answer.text
            assert "x-quarterdeck-ignored" not in answer.headers
            got = stand.engine.received[-1]
            assert (got.cache_salt, got.priority, got.adapter) == ("tenant é", -7, None)
            sampling = msgspec.structs.asdict(got.sampling)
            assert sampling.pop("logit_bias") == ((3, 2.0), (9, -100.0))
            assert sampling.pop("allowed_token_ids") == (3, 40)
            assert sampling.pop("stop_token_ids") == (7,)
            for name in FIELDS.keys() & sampling.keys():
                assert sampling[name] == FIELDS[name], name


@pytest.mark.anyio
async def test_bad_words_are_forbidden_at_the_begin_and_after_a_space(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()
        body = {**COMPLETION, "bad_words": ["quick", " quick", "Paris"], "max_tokens": 1}

        assert (await http.post("/v1/completions", json=body)).status_code == 200

        async def ids(text: str) -> tuple[int, ...]:
            answer = await http.post("/tokenize", json={"prompt": text})
            return tuple(answer.json()["tokens"])

        wanted = [await ids(text) for text in ("quick", " quick", "Paris", " Paris")]
        assert stand.engine.received[-1].sampling.bad_words == tuple(wanted)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "fields",
    [{"logit_bias": {"191222": -100}}, {"allowed_token_ids": [512]}, {"stop_token_ids": [512]}],
)
async def test_token_ids_must_be_in_the_vocabulary(run_dir, tiny_model_path, fields):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()

        answer = await http.post("/v1/chat/completions", json={**CHAT, **fields, "min_tokens": 1})

        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, next(iter(fields)))
        assert error["code"] == "invalid_value"
        assert not stand.engine.received


@pytest.mark.anyio
async def test_seeds_of_choices_begin_anew_with_each_prompt_and_wrap(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()
        body = {"model": "tiny", "prompt": [[5], [6]], "n": 2, "max_tokens": 1}

        await http.post("/v1/completions", json={**body, "seed": 2**63 - 1})

        seeds = [(r.prompt_token_ids[0], r.sampling.seed) for r in stand.engine.received]
        assert sorted(seeds) == [
            (5, -(2**63)), (5, 2**63 - 1), (6, -(2**63)), (6, 2**63 - 1),
        ]  # fmt: skip


# ---------------------------------------------------------------- what the engine says


def cached_by_choice(request: AddRequest, output: RequestOutput) -> RequestOutput:
    """The second choice of a prompt finds more in the cache."""
    later = request.request_id.endswith(("-1", "-3"))
    return msgspec.structs.replace(output, cached_tokens=3 if later else 1)


@pytest.mark.anyio
async def test_cached_tokens_are_counted_once_for_each_prompt(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        stand.engine.amend = cached_by_choice
        http = await stand.http()
        body = {"model": "tiny", "prompt": [[5, 6, 7, 8], [6, 7, 8, 9]], "n": 2, "max_tokens": 2}

        plain = (await http.post("/v1/completions", json=body)).json()
        options = {"stream": True, "stream_options": {"include_usage": True}}
        stream = await http.post("/v1/completions", json={**body, **options})

        usage = json.loads(stream.text.split("data: ")[-2])["usage"]
        assert plain["usage"] == usage
        assert usage["prompt_tokens"] == 8
        assert usage["prompt_tokens_details"] == {"cached_tokens": 2}


def failing(code: str):
    def fail(request: AddRequest, output: RequestOutput) -> RequestOutput:
        error = RequestError(code=code, message="the schema has 'not' at SECRET")
        return RequestOutput(
            request_id=request.request_id, finish_reason=FinishReason.ERROR, error=error
        )

    return fail


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "code", "status", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "invalid_grammar", 400, "response_format"),
        ({"structured_outputs": {"regex": "a"}}, "invalid_grammar", 400, "structured_outputs"),
        ({}, "adapter_not_loaded", 404, "model"),
    ],
)
async def test_a_refusal_by_the_engine_is_an_http_status(
    run_dir, tiny_model_path, stream, fields, code, status, param
):
    async with running(run_dir, tiny_model_path) as stand:
        stand.engine.amend = failing(code)
        http = await stand.http()

        answer = await http.post("/v1/chat/completions", json={**CHAT, **fields, "stream": stream})
        record = await stand.supervisor.record(answer.headers["x-request-id"])

        error = answer.json()["error"]
        assert answer.status_code == status
        assert (error["type"], error["code"], error["param"]) == (
            "invalid_request_error", code, param,
        )  # fmt: skip
        assert "'not'" in error["message"]
        assert record.error_code == code
        if code == "invalid_grammar":
            assert record.error_detail is None  # it may quote the schema


def warning(request: AddRequest, output: RequestOutput) -> RequestOutput:
    texts = ("'format' is not enforced", "odd\r\nx-evil: é", "a" * 999)
    return msgspec.structs.replace(output, warnings=texts)


SAFE = "'format' is not enforced; odd??x-evil: ?; " + "a" * 200


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_grammar_does_not_enforce_is_a_header(run_dir, tiny_model_path, stream):
    async with running(run_dir, tiny_model_path) as stand:
        stand.engine.amend = warning
        http = await stand.http()

        body = {**CHAT, "stream": stream, "max_tokens": 3, "n": 2}
        answer = await http.post("/v1/chat/completions", json=body)

        assert answer.headers["x-quarterdeck-warnings"] == SAFE
        assert "x-evil" not in answer.headers


@pytest.mark.anyio
async def test_warnings_that_come_after_the_headers_are_a_comment(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path, timing=FAST) as stand:
        stand.engine.amend = warning
        stand.engine.may_step.clear()
        http = await stand.http()
        body = {**CHAT, "stream": True, "max_tokens": 3}

        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            stand.engine.may_step.set()  # the headers are here
            lines = [line async for line in answer.aiter_lines() if line]

        assert "x-quarterdeck-warnings" not in answer.headers
        assert lines.count(f": warnings: {SAFE}") == 1
        assert lines[-1] == "data: [DONE]"
