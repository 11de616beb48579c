"""The chat route with the official SDK and with plain HTTP, frame by frame."""

import asyncio
import json

import openai
import pytest

from tests.appliance.gateway.stand import CHAT, running
from tests.appliance.gateway.text_models import with_template

pytestmark = pytest.mark.anyio


async def test_the_sdk_gets_a_complete_answer(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        sdk = await stand.sdk()

        answer = await sdk.chat.completions.create(**CHAT, max_tokens=5)

        choice = answer.choices[0]
        assert answer.id.startswith("chatcmpl-")
        assert answer._request_id == "req-" + answer.id.removeprefix("chatcmpl-")
        assert choice.finish_reason == "length"
        assert choice.message.role == "assistant"
        assert answer.usage.completion_tokens == 5
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5
        assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def test_a_stream_adds_up_to_the_plain_answer(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        sdk = await stand.sdk()
        plain = await sdk.chat.completions.create(**CHAT, max_tokens=20)

        stream = await sdk.chat.completions.create(**CHAT, max_tokens=20, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        assert text == plain.choices[0].message.content
        assert text


async def test_eight_at_once_are_each_their_own(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        sdk = await stand.sdk()

        async def ask(number: int) -> tuple[str, str]:
            words = f"number {number} says hello"
            answer = await sdk.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": words}], max_tokens=60
            )
            return words, answer.choices[0].message.content

        for words, text in await asyncio.gather(*(ask(number) for number in range(8))):
            assert words in text  # the fake engine echoes the prompt


async def frames(stand, **body: object):
    http = await stand.http()
    async with http.stream("POST", "/v1/chat/completions", json={**CHAT, **body}) as response:
        lines = [line async for line in response.aiter_lines() if line]
    return response, lines


async def test_the_frames_of_a_stream_come_in_the_order_of_the_contract(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        options = {"stream": True, "n": 2, "max_tokens": 3}
        response, lines = await frames(stand, **options, stream_options={"include_usage": True})

        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        data = [line.removeprefix("data: ") for line in lines if not line.startswith(":")]
        assert data[-1] == "[DONE]"
        chunks = [json.loads(line) for line in data[:-1]]
        roles = [c["choices"][0] for c in chunks[:2]]
        assert [c["index"] for c in roles] == [0, 1]
        assert all(c["delta"] == {"role": "assistant", "content": ""} for c in roles)
        assert all(c["usage"] is None for c in chunks[:-1])
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == 6
        finishes = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["finish_reason"]]
        assert sorted(c["index"] for c in finishes) == [0, 1]
        assert all(c["delta"] == {} and c["finish_reason"] == "length" for c in finishes)
        assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1


async def test_without_include_usage_there_is_no_usage_at_all(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        _, lines = await frames(stand, stream=True, stream_options={}, max_tokens=2)

        assert not any('"usage"' in line for line in lines)


async def test_a_stop_string_ends_the_text_and_the_engines_work(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        sdk = await stand.sdk()

        answer = await sdk.chat.completions.create(**CHAT, stop="capital", max_tokens=400)
        await stand.supervisor.record(answer.id.removeprefix("chatcmpl-"))

        assert answer.choices[0].finish_reason == "stop"
        assert "capital" not in answer.choices[0].message.content
        assert stand.engine.aborts[0].reason == "stop_string"
        assert not stand.engine.live_requests


async def test_max_completion_tokens_wins(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        sdk = await stand.sdk()

        answer = await sdk.chat.completions.create(**CHAT, max_tokens=50, max_completion_tokens=4)

        assert answer.usage.completion_tokens == 4


async def test_logprobs_have_raw_bytes_and_the_asked_number_of_tops(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        sdk = await stand.sdk()

        answer = await sdk.chat.completions.create(
            **CHAT, max_tokens=4, logprobs=True, top_logprobs=2
        )

        content = answer.choices[0].logprobs.content
        assert len(content) == 4
        assert all(len(entry.top_logprobs) == 2 for entry in content)


async def test_each_seeded_choice_has_a_seed_of_its_own(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        sdk = await stand.sdk()

        await sdk.chat.completions.create(**CHAT, n=3, seed=7, max_tokens=1)

        assert sorted(r.sampling.seed for r in stand.engine.received) == [7, 8, 9]


async def test_the_default_is_to_the_contexts_end(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path, step_s=0) as stand:
        sdk = await stand.sdk()

        answer = await sdk.chat.completions.create(**CHAT)

        assert answer.usage.total_tokens == 512
        assert answer.choices[0].finish_reason == "length"


async def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        sdk = await stand.sdk()
        messages = [{"role": "user", "content": "fox " * 600}]

        with pytest.raises(openai.BadRequestError) as caught:
            await sdk.chat.completions.create(model="tiny", messages=messages)

        assert caught.value.code == "context_length_exceeded"
        assert "maximum context length is 512 tokens" in caught.value.message
        assert not stand.engine.received


@pytest.mark.parametrize("name", ["messages", "prompt"])
async def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(
    run_dir, tiny_model_path, name
):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()
        text = "a" * 100_000
        body = {
            "messages": {"messages": [{"role": "user", "content": text}]},
            "prompt": {"prompt": ["x", text]},
        }[name]
        url = "/v1/chat/completions" if name == "messages" else "/v1/completions"

        answer = await http.post(url, json={"model": "tiny", **body})

        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        assert error["param"] == name
        longest = len(" !?.,:;()[]{}<>|@#$%&*+-=/")
        assert f"resulted in at least {-(-100_000 // longest)} tokens" in error["message"]


async def test_what_a_template_says_of_a_chat_is_told_but_not_recorded(run_dir, tmp_path):
    template = "{{ raise_exception('no: ' + messages[0]['content']) }}"
    async with running(run_dir, with_template(tmp_path / "strict", template)) as stand:
        http = await stand.http()

        answer = await http.post("/v1/chat/completions", json=CHAT)
        record = await stand.supervisor.record(answer.headers["x-request-id"])

        assert answer.status_code == 400
        assert "no: The capital" in answer.json()["error"]["message"]
        assert record.error_code == "invalid_prompt"
        assert record.error_detail is None


async def test_control_tokens_that_a_user_types_are_plain_text(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        sdk = await stand.sdk()
        messages = [{"role": "user", "content": "A<|im_end|>B"}]

        await sdk.chat.completions.create(model="tiny", messages=messages, max_tokens=1)

        ids = stand.engine.received[0].prompt_token_ids
        assert ids.count(2) == 1  # the template's own <|im_end|>


async def test_unknown_fields_are_named_and_strictness_refuses_them(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()
        body = {**CHAT, "max_tokens": 1, "flux": 1, "bad\r\nname": 2, "end\n": 3}

        answer = await http.post("/v1/chat/completions", json=body)

        assert answer.status_code == 200
        assert answer.headers["x-quarterdeck-ignored"] == "flux, other"
    async with running(run_dir, tiny_model_path, strict_parameters=True) as stand:
        http = await stand.http()

        answer = await http.post("/v1/chat/completions", json=body)

        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "unknown_parameter"


async def test_unknown_stream_options_are_unknown_fields(run_dir, tiny_model_path):
    body = {**CHAT, "max_tokens": 1, "stream": True, "stream_options": {"flux": 1}}
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()

        answer = await http.post("/v1/chat/completions", json=body)

        assert answer.headers["x-quarterdeck-ignored"] == "stream_options.flux"
    async with running(run_dir, tiny_model_path, strict_parameters=True) as stand:
        http = await stand.http()

        answer = await http.post("/v1/chat/completions", json=body)

        assert answer.json()["error"]["param"] == "stream_options.flux"
