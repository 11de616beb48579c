"""Logprobs of prompts: `echo` with `logprobs` as lm-eval uses it, and `prompt_logprobs`."""

import json

import msgspec
import pytest

from engine.wire.messages import AddRequest, RequestOutput, TokenLogprob, TokenLogprobs
from tests.appliance.gateway.stand import CHAT, running

pytestmark = pytest.mark.anyio

PROMPT = "The café 😀 of France"


async def ids_of(http, text: str) -> list[int]:
    return (await http.post("/tokenize", json={"prompt": text})).json()["tokens"]


async def complete(http, **fields: object) -> dict:
    answer = await http.post("/v1/completions", json={"model": "tiny", "prompt": PROMPT, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def streamed(http, **fields: object) -> list[dict]:
    """The choices of all chunks of a stream."""
    body = {"model": "tiny", "prompt": PROMPT, **fields, "stream": True}
    answer = await http.post("/v1/completions", json=body)
    data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert data[-1] == "[DONE]"
    return [choice for line in data[:-1] for choice in json.loads(line)["choices"]]


async def test_an_echo_is_scored_from_its_second_token_on(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()
        prompt = await ids_of(http, PROMPT)

        answer = await complete(http, echo=True, logprobs=2, max_tokens=1)

        (choice,) = answer["choices"]
        logprobs = choice["logprobs"]
        assert {len(values) for values in logprobs.values()} == {len(prompt) + 1}
        assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
        for logprob, top in zip(
            logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True
        ):
            assert logprob == max(top.values())  # the fake engine's own token is its best
        assert choice["text"].startswith(PROMPT)
        assert stand.engine.received[-1].sampling.prompt_logprobs == 2


async def test_offsets_of_an_echo_are_places_in_the_text(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()

        (choice,) = (await complete(http, echo=True, logprobs=0, max_tokens=6))["choices"]

        offsets, tokens = choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"]
        assert offsets == sorted(offsets)
        assert offsets[0] == 0
        whole = [
            (at, token)
            for at, token in zip(offsets, tokens, strict=True)
            if not token.startswith("bytes:")
        ]
        assert len(whole) > 5
        for at, token in whole:
            assert choice["text"][at : at + len(token)] == token


async def test_a_prompt_is_scored_without_generating(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()
        prompt = await ids_of(http, PROMPT)

        answer = await complete(http, echo=True, logprobs=1, max_tokens=0, return_token_ids=True)

        (choice,) = answer["choices"]
        assert choice["text"] == PROMPT
        assert choice["finish_reason"] == "length"
        assert choice["token_ids"] == []
        assert {len(values) for values in choice["logprobs"].values()} == {len(prompt)}
        assert answer["usage"]["completion_tokens"] == 0
        assert answer["usage"]["total_tokens"] == len(prompt)
        assert stand.engine.received[-1].sampling.max_tokens == 1
        await stand.supervisor.record(answer["id"].removeprefix("cmpl-"))
        assert not stand.engine.live_requests


@pytest.mark.parametrize(
    "fields",
    [
        {"echo": True, "logprobs": 2, "max_tokens": 9},
        {"echo": True, "logprobs": 2, "max_tokens": 0},
        {"echo": True, "logprobs": 0, "max_tokens": 4, "n": 3},
        {"echo": True, "max_tokens": 4},
        {"echo": True, "max_tokens": 0},
        {"logprobs": 1, "max_tokens": 4},
        {"prompt": [[300], [5, 6, 7]], "echo": True, "logprobs": 1, "max_tokens": 2},
    ],
)
async def test_a_stream_adds_up_to_the_plain_answer(run_dir, tiny_model_path, fields):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()

        plain = (await complete(http, **fields))["choices"]
        parts = await streamed(http, **fields)

        for choice in plain:
            own = [part for part in parts if part["index"] == choice["index"]]
            assert "".join(part["text"] for part in own) == choice["text"]
            assert [p["finish_reason"] for p in own if p["finish_reason"]] == ["length"]
            if choice["logprobs"] is None:
                assert all(part["logprobs"] is None for part in own)
                continue
            for name, values in choice["logprobs"].items():
                listed = [value for part in own for value in (part["logprobs"] or {name: []})[name]]
                assert listed == values, name


def with_far_token(request: AddRequest, output: RequestOutput) -> RequestOutput:
    """Prompt tokens that are not among their own candidates."""
    if output.prompt_logprobs is None:
        return output
    scored = tuple(
        TokenLogprobs(
            token_id=token_id,
            logprob=-7.123456789,
            top=(TokenLogprob(token_id=1, logprob=-0.5), TokenLogprob(token_id=0, logprob=-1.5)),
        )
        for token_id in request.prompt_token_ids[1:]
    )
    return msgspec.structs.replace(output, prompt_logprobs=scored)


async def test_prompt_logprobs_are_in_each_choice_as_vllm_has_them(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()
        stand.engine.amend = with_far_token

        answer = await complete(http, prompt=[40, 41, 42], prompt_logprobs=1, max_tokens=1, n=2)

        for choice in answer["choices"]:
            first, second, third = choice["prompt_logprobs"]
            assert first is None
            assert list(second) == ["41", "1"]
            assert second["41"]["logprob"] == -7.123456789
            assert (second["41"]["rank"], second["1"]["rank"]) == (None, 1)
            assert second["1"]["decoded_token"]
            assert list(third) == ["42", "1"]
            assert choice["logprobs"] is None


async def test_prompt_logprobs_of_a_chat_are_in_the_answer_too(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()

        body = {**CHAT, "prompt_logprobs": 0, "max_tokens": 2}
        answer = (await http.post("/v1/chat/completions", json=body)).json()

        scored = answer["prompt_logprobs"]
        assert len(scored) == answer["usage"]["prompt_tokens"]
        assert scored[0] is None
        prompt = stand.engine.received[-1].prompt_token_ids
        assert [list(entry) for entry in scored[1:]] == [[str(t)] for t in prompt[1:]]
        assert answer["choices"][0]["prompt_logprobs"] == scored
        assert answer["choices"][0]["logprobs"] is None


async def test_nobody_gets_prompt_logprobs_unasked(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()

        scored = await complete(http, echo=True, logprobs=1, max_tokens=1)
        chat = (await http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 1})).json()

        assert "prompt_logprobs" not in scored["choices"][0]
        assert "prompt_logprobs" not in chat
        assert stand.engine.received[-1].sampling.prompt_logprobs is None


async def test_a_prompt_of_one_token_has_nothing_to_score(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()

        answer = await complete(
            http, prompt=[40], prompt_logprobs=3, echo=True, logprobs=1, max_tokens=0
        )

        (choice,) = answer["choices"]
        assert choice["prompt_logprobs"] == [None]
        assert choice["logprobs"]["token_logprobs"] == [None]
