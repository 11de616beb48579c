"""The offline engine against the endpoint: the same seeds give the same tokens and texts."""

from pathlib import Path
from typing import Any

import pytest

from engine.llm import LLM, SamplingParams, StructuredOutputs
from tests.integration.appliance_process import ApplianceProcess

pytestmark = [pytest.mark.process]

PROMPTS = ["The capital of France is", "An engine makes tokens", "0123456789"]
SAMPLINGS: list[dict[str, Any]] = [
    {"max_tokens": 24, "temperature": 0.9, "seed": 5, "top_p": 0.9, "top_k": 40, "n": 2},
    {"max_tokens": 24, "temperature": 0},
    {"max_tokens": 24, "temperature": 1.2, "seed": -3, "stop": ["e", "o"], "min_tokens": 3},
    {"max_tokens": 24, "temperature": 0.7, "seed": 9, "frequency_penalty": 0.8},
]


def endpoint(appliance: ApplianceProcess, path: str, **body: Any) -> list[tuple[list[int], str]]:
    answer = appliance.post(path, {"model": appliance.model, "return_token_ids": True, **body})
    assert answer.status_code == 200, answer.text
    return [(choice["token_ids"], _text(choice)) for choice in answer.json()["choices"]]


def _text(choice: dict[str, Any]) -> str:
    return choice["message"]["content"] if "message" in choice else choice["text"]


def test_llm_answers_as_the_endpoint_does(tiny_appliance: ApplianceProcess, tiny_model_path: Path):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    with LLM(tiny_model_path, multiprocess=False, dtype="float32", kv_cache_bytes=8 << 20) as llm:
        for fields in SAMPLINGS:
            params = SamplingParams(**{**fields, "stop": tuple(fields.get("stop", ()))})
            for prompt, result in zip(PROMPTS, llm.generate(PROMPTS, params), strict=True):
                asked = endpoint(tiny_appliance, "/v1/completions", prompt=prompt, **fields)
                assert [(list(o.token_ids), o.text) for o in result.outputs] == asked

            messages = [{"role": "user", "content": PROMPTS[0]}]
            (chat,) = llm.chat(messages, params)
            asked = endpoint(tiny_appliance, "/v1/chat/completions", messages=messages, **fields)
            assert [(list(o.token_ids), o.text) for o in chat.outputs] == asked

        shape = {"json_schema": {"name": "x", "schema": schema}, "type": "json_schema"}
        params = SamplingParams(
            max_tokens=60, seed=2, structured_outputs=StructuredOutputs(json=schema)
        )
        (structured,) = llm.chat(messages, params)
        asked = endpoint(
            tiny_appliance,
            "/v1/chat/completions",
            messages=messages,
            max_tokens=60,
            seed=2,
            response_format=shape,
        )
        assert [(list(structured.token_ids), structured.text)] == asked
