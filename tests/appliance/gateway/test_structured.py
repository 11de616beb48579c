"""`response_format`, `structured_outputs`, `guided_*`: checked at the front, sent as a grammar."""

import json
from typing import Any

import msgspec
import pytest

from appliance.gateway.openai.errors import ApiError
from appliance.gateway.openai.parameters import parse_chat_parameters, parse_completion_parameters
from engine.wire.messages import FinishReason, Grammar, GrammarKind, RequestError
from tests.appliance.gateway.stand import CHAT, running

SCHEMA = {
    "type": "object",
    "properties": {"z": {"type": "integer"}, "a": {"type": "string"}},
    "required": ["z"],
}
SOURCE = json.dumps(SCHEMA, separators=(",", ":"))


def response_format(**fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": fields}}


def grammar_of(fields: dict[str, Any]) -> Grammar | None:
    chat = parse_chat_parameters({**CHAT, **fields}, strict=True)
    completion = parse_completion_parameters({"model": "m", "prompt": "p", **fields}, strict=True)
    assert chat.grammar == completion.grammar
    return chat.grammar


def refusal(fields: dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_chat_parameters({**CHAT, **fields}, strict=False)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({}, None),
        ({"response_format": None}, None),
        ({"response_format": {"type": "text"}}, None),
        (
            {"response_format": {"type": "json_object"}},
            Grammar(kind=GrammarKind.JSON_OBJECT),
        ),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            Grammar(kind=GrammarKind.JSON_SCHEMA, source=SOURCE, lenient=True),
        ),
        (
            response_format(name="r", schema=SCHEMA, strict=True, description="a thing"),
            Grammar(kind=GrammarKind.JSON_SCHEMA, source=SOURCE),
        ),
        (
            response_format(name="R_1-x", schema=SCHEMA, strict=False),
            Grammar(kind=GrammarKind.JSON_SCHEMA, source=SOURCE, lenient=True),
        ),
        (
            response_format(name="r", schema=SCHEMA, strict=None),
            Grammar(kind=GrammarKind.JSON_SCHEMA, source=SOURCE, lenient=True),
        ),
        (
            response_format(name="r", schema=SCHEMA),
            Grammar(kind=GrammarKind.JSON_SCHEMA, source=SOURCE, lenient=True),
        ),
        (
            {"structured_outputs": {"json": SCHEMA}},
            Grammar(kind=GrammarKind.JSON_SCHEMA, source=SOURCE),
        ),
        (
            {"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}},
            Grammar(kind=GrammarKind.JSON_SCHEMA, source=SOURCE),
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            Grammar(kind=GrammarKind.JSON_SCHEMA, source=SOURCE, compact=True),
        ),
        (
            {"structured_outputs": {"json_object": True, "disable_fallback": True}},
            Grammar(kind=GrammarKind.JSON_OBJECT),
        ),
        (
            {"structured_outputs": {"regex": "a+", "json_object": False}},
            Grammar(kind=GrammarKind.REGEX, source="a+"),
        ),
        (
            {"structured_outputs": {"choice": ["a", "\u00e9", ""]}},
            Grammar(kind=GrammarKind.CHOICE, source='["a","\u00e9",""]'),
        ),
        (
            {"structured_outputs": {"grammar": 'start: "a"'}},
            Grammar(kind=GrammarKind.LARK, source='start: "a"'),
        ),
        ({"guided_json": SCHEMA}, Grammar(kind=GrammarKind.JSON_SCHEMA, source=SOURCE)),
        ({"guided_json": SOURCE}, Grammar(kind=GrammarKind.JSON_SCHEMA, source=SOURCE)),
        ({"guided_regex": "a|b"}, Grammar(kind=GrammarKind.REGEX, source="a|b")),
        ({"guided_choice": ["x"]}, Grammar(kind=GrammarKind.CHOICE, source='["x"]')),
        ({"guided_grammar": "start: /a/"}, Grammar(kind=GrammarKind.LARK, source="start: /a/")),
        (
            {"response_format": {"type": "text"}, "guided_regex": "a"},
            Grammar(kind=GrammarKind.REGEX, source="a"),
        ),
    ],
)
def test_each_way_to_ask_gives_its_grammar(fields: dict[str, Any], grammar: Grammar | None):
    assert grammar_of(fields) == grammar


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


JSON = "response_format.json_schema"


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"response_format": "json_object"}, "response_format", "invalid_type"),
        ({"response_format": {}}, "response_format.type", "missing_required_parameter"),
        ({"response_format": {"type": 5}}, "response_format.type", "invalid_type"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        ({"response_format": {"type": "json_schema"}}, JSON, "missing_required_parameter"),
        (
            {"response_format": {"type": "json_schema", "json_schema": 5}},
            JSON,
            "invalid_type",
        ),
        (response_format(schema={}), f"{JSON}.name", "missing_required_parameter"),
        (response_format(name=5, schema={}), f"{JSON}.name", "invalid_type"),
        (response_format(name="", schema={}), f"{JSON}.name", "invalid_value"),
        (response_format(name="a b", schema={}), f"{JSON}.name", "invalid_value"),
        (response_format(name="a" * 65, schema={}), f"{JSON}.name", "invalid_value"),
        (response_format(name="a\n", schema={}), f"{JSON}.name", "invalid_value"),
        (response_format(name="r"), f"{JSON}.schema", "missing_required_parameter"),
        (response_format(name="r", schema=[]), f"{JSON}.schema", "invalid_type"),
        (response_format(name="r", schema=True), f"{JSON}.schema", "invalid_type"),
        (response_format(name="r", schema={}, strict=1), f"{JSON}.strict", "invalid_type"),
        (
            response_format(name="r", schema={}, description=1),
            f"{JSON}.description",
            "invalid_type",
        ),
        (response_format(name="r", schema=deep(65)), f"{JSON}.schema", "invalid_value"),
        (
            response_format(name="r", schema={"enum": [1] * 5001}),
            f"{JSON}.schema",
            "invalid_value",
        ),
        (
            response_format(name="r", schema={"title": "x" * 262_144}),
            f"{JSON}.schema",
            "invalid_value",
        ),
        ({"structured_outputs": "json"}, "structured_outputs", "invalid_type"),
        ({"structured_outputs": {}}, "structured_outputs", "invalid_value"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs", "invalid_value"),
        ({"structured_outputs": {"jsno": {}}}, "structured_outputs", "unknown_parameter"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "invalid_value"),
        ({"structured_outputs": {"json": "5"}}, "structured_outputs.json", "invalid_type"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "empty_string"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex", "invalid_type"),
        (
            {"structured_outputs": {"regex": "a" * 262_145}},
            "structured_outputs.regex",
            "invalid_value",
        ),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "empty_array"),
        ({"structured_outputs": {"choice": "a"}}, "structured_outputs.choice", "invalid_type"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice", "invalid_type"),
        (
            {"structured_outputs": {"choice": ["a"] * 5001}},
            "structured_outputs.choice",
            "array_above_max_length",
        ),
        ({"structured_outputs": {"grammar": []}}, "structured_outputs.grammar", "invalid_type"),
        (
            {"structured_outputs": {"json_object": 1}},
            "structured_outputs.json_object",
            "invalid_type",
        ),
        (
            {"structured_outputs": {"structural_tag": "x"}},
            "structured_outputs.structural_tag",
            "unsupported_parameter",
        ),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
            "unsupported_parameter",
        ),
        ({"guided_json": 5}, "guided_json", "invalid_type"),
        ({"guided_choice": []}, "guided_choice", "empty_array"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "unsupported_parameter"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(fields: dict[str, Any], param: str, code: str):
    error = refusal(fields)
    assert (error.param, error.code) == (param, code)


def test_64_levels_are_taken():
    assert grammar_of({"guided_json": deep(64)}) is not None


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        (
            {"response_format": {"type": "json_object"}, "guided_regex": "a"},
            ("response_format", "guided_regex"),
        ),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            ("response_format", "structured_outputs"),
        ),
        (
            {"structured_outputs": {"choice": ["a"], "regex": "a"}},
            ("structured_outputs.regex", "structured_outputs.choice"),
        ),
        ({"guided_json": {}, "guided_choice": ["a"]}, ("guided_json", "guided_choice")),
    ],
)
def test_two_grammars_are_refused_and_both_named(fields: dict[str, Any], names: tuple[str, str]):
    error = refusal(fields)
    assert error.code == "invalid_value"
    assert all(f"'{name}'" in error.message for name in names)
    assert error.param == names[1]


def test_messages_do_not_repeat_the_input():
    secret = "SECRET" * 20
    for fields in (
        {"structured_outputs": {secret: 1}},
        {"structured_outputs": {"json": secret}},
        {"response_format": {"type": secret}},
        response_format(name=secret, schema={}),
    ):
        assert "SECRET" not in refusal(fields).message


@pytest.mark.anyio
async def test_the_engine_gets_the_grammar_of_each_choice(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()
        body = {**CHAT, **response_format(name="r", schema=SCHEMA, strict=True), "n": 2}
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200

        strict = Grammar(kind=GrammarKind.JSON_SCHEMA, source=SOURCE)
        assert [request.grammar for request in stand.engine.received] == [strict, strict]


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
async def test_a_grammar_that_the_engine_refuses_is_a_400_that_says_why(
    run_dir, tiny_model_path, stream
):
    async with running(run_dir, tiny_model_path) as stand:
        fault = "the JSON schema cannot be used: 'not' (at #/not) is not supported"
        error = RequestError(code="invalid_grammar", message=fault)
        stand.engine.amend = lambda request, output: (
            msgspec.structs.replace(
                output,
                new_token_ids=(),
                finish_reason=FinishReason.ERROR,
                error=error,
            )
            if request.grammar
            else output
        )
        http = await stand.http()
        body = {**CHAT, **response_format(name="r", schema={"not": {}}, strict=True)}
        answer = await http.post("/v1/chat/completions", json={**body, "stream": stream})
        assert answer.status_code == 400
        told = answer.json()["error"]
        assert told["message"] == fault
        assert told["param"] == "response_format"
        assert told["type"] == "invalid_request_error"

        assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 200
