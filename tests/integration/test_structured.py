"""Structured output end to end: a real model that is held to a schema, a pattern or a choice."""

import concurrent.futures
import json
import re
from typing import Any

import openai
import pytest

from tests.integration.appliance_process import ApplianceProcess

pytestmark = pytest.mark.process

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "country": {"enum": ["France", "Italy", "Spain"]},
        "inhabitants": {"type": "integer", "minimum": 1000, "maximum": 20_000_000},
    },
    "required": ["city", "country", "inhabitants"],
    "additionalProperties": False,
}
MESSAGES = [{"role": "user", "content": "Tell me about Paris, as JSON."}]


def json_schema(schema: Any, *, strict: bool = True) -> dict[str, Any]:
    named = {"name": "answer", "schema": schema, "strict": strict}
    return {"type": "json_schema", "json_schema": named}


def check_city(text: str) -> None:
    city = json.loads(text)
    assert list(city) == list(CITY["properties"])
    assert len(city["city"]) <= 20
    assert city["country"] in {"France", "Italy", "Spain"}
    assert 1000 <= city["inhabitants"] <= 20_000_000


@pytest.mark.parametrize("temperature", [0, 1])
def test_an_answer_matches_its_schema_streamed_or_not(
    smollm2_appliance: ApplianceProcess, temperature: int
):
    chat = smollm2_appliance.sdk.chat.completions
    fields: dict[str, Any] = {
        "model": "smollm2",
        "messages": MESSAGES,
        "temperature": temperature,
        "seed": 7,
        "max_tokens": 200,
        "response_format": json_schema(CITY),
    }
    choice = chat.create(**fields).choices[0]
    assert choice.finish_reason == "stop"
    check_city(choice.message.content or "")

    chunks = list(chat.create(**fields, stream=True))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == choice.message.content
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_eight_clients_with_and_without_grammars_share_the_engine(
    smollm2_appliance: ApplianceProcess,
):
    openai_client = smollm2_appliance.sdk

    def ask(index: int) -> str:
        fields: dict[str, Any] = {"temperature": 1, "seed": index, "max_tokens": 16}
        if index % 2:
            fields |= {"response_format": json_schema(CITY), "max_tokens": 120}
        answer = openai_client.chat.completions.create(model="smollm2", messages=MESSAGES, **fields)
        return answer.choices[0].message.content or ""

    alone = [ask(index) for index in range(2)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(ask, range(8)))
    assert texts[:2] == alone
    for text in texts[1::2]:
        check_city(text)


def test_each_of_several_choices_matches(smollm2_appliance: ApplianceProcess):
    answer = smollm2_appliance.sdk.chat.completions.create(
        model="smollm2",
        messages=MESSAGES,
        n=3,
        max_tokens=120,
        response_format=json_schema(CITY),
    )
    assert len(answer.choices) == 3
    for choice in answer.choices:
        check_city(choice.message.content or "")


def test_any_json_object(smollm2_appliance: ApplianceProcess):
    answer = smollm2_appliance.sdk.chat.completions.create(
        model="smollm2",
        messages=MESSAGES,
        temperature=0,
        max_tokens=60,
        response_format={"type": "json_object"},
    )
    choice = answer.choices[0]
    assert (choice.message.content or "").lstrip().startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content or ""), dict)


@pytest.mark.parametrize(
    ("outputs", "pattern"),
    [
        ({"choice": ["Paris", "Rome", "Madrid"]}, "Paris|Rome|Madrid"),
        ({"regex": "[A-Z][a-z]{2,8}, [0-9]{4}"}, "[A-Z][a-z]{2,8}, [0-9]{4}"),
        ({"grammar": 'start: "<" /[a-z]{1,9}/ ">"'}, "<[a-z]{1,9}>"),
    ],
)
def test_completions_match_what_structured_outputs_asks_for(
    smollm2_appliance: ApplianceProcess, outputs: dict[str, Any], pattern: str
):
    for temperature in (0, 1):
        answer = smollm2_appliance.sdk.completions.create(
            model="smollm2",
            prompt="The capital of France is",
            temperature=temperature,
            max_tokens=40,
            extra_body={"structured_outputs": outputs},
        )
        assert answer.choices[0].finish_reason == "stop"
        assert re.fullmatch(pattern, answer.choices[0].text)


def test_the_most_likely_choice_is_the_right_one(smollm2_appliance: ApplianceProcess):
    answer = smollm2_appliance.sdk.completions.create(
        model="smollm2",
        prompt="The capital of France is the city of ",
        temperature=0,
        extra_body={"structured_outputs": {"choice": ["Berlin", "Paris", "Lima"]}},
    )
    assert answer.choices[0].text == "Paris"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"properties": {"foo": "bar"}}, "#/properties/foo"),
        ({"type": "array", "uniqueItems": True}, "'uniqueItems' (at #/uniqueItems)"),
        ({"$ref": "https://example.org/schema.json"}, "remote"),
    ],
)
def test_a_refused_schema_is_a_400_that_names_the_fault_and_the_engine_lives(
    smollm2_appliance: ApplianceProcess, schema: Any, says: str, stream: bool
):
    chat = smollm2_appliance.sdk.chat.completions
    fields: dict[str, Any] = {"model": "smollm2", "messages": MESSAGES, "max_tokens": 8}
    with pytest.raises(openai.BadRequestError) as refused:
        chat.create(**fields, response_format=json_schema(schema), stream=stream)
    assert says in refused.value.message
    assert refused.value.param == "response_format"

    assert chat.create(**fields).usage is not None


def test_best_effort_answers_and_says_what_is_not_enforced(smollm2_appliance: ApplianceProcess):
    schema = CITY | {"not": {"required": ["country"]}}
    answer = smollm2_appliance.sdk.chat.completions.with_raw_response.create(
        model="smollm2",
        messages=MESSAGES,
        max_tokens=200,
        response_format=json_schema(schema, strict=False),
    )
    assert "'not' (at #/not)" in answer.headers["x-quarterdeck-warnings"]
    check_city(answer.parse().choices[0].message.content or "")
