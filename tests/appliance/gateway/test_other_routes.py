"""Completions, models, tokenizing and the probes."""

import pytest

from engine.wire.messages import AddRequest
from tests.appliance.gateway.stand import running

pytestmark = pytest.mark.anyio


async def test_completions_number_their_choices_by_prompt_and_echo(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        sdk = await stand.sdk()

        answer = await sdk.completions.create(
            model="tiny", prompt=["The capital", "An engine"], n=2, echo=True, max_tokens=2
        )
        default = await sdk.completions.create(model="tiny", prompt="The capital")
        ids = await sdk.completions.create(model="tiny", prompt=[5, 6, 7], max_tokens=4)

        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        starts = [choice.text[:4] for choice in answer.choices]
        assert starts == ["The ", "The ", "An e", "An e"]
        assert answer.usage.completion_tokens == 8
        assert answer.id.startswith("cmpl-")
        assert default.usage.completion_tokens == 16
        assert stand.engine.received[-1].prompt_token_ids == (5, 6, 7)
        assert ids.usage.prompt_tokens == 3


async def test_streamed_completions_add_up_with_their_logprobs(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        sdk = await stand.sdk()
        ask = {"model": "tiny", "prompt": "The caf\u00e9", "max_tokens": 12, "logprobs": 2}
        plain = (await sdk.completions.create(**ask)).choices[0]

        stream = await sdk.completions.create(
            **ask, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        parts = [chunk.choices[0] for chunk in chunks if chunk.choices]

        assert "".join(part.text for part in parts) == plain.text
        offsets = [o for part in parts for o in part.logprobs.text_offset]
        assert offsets == plain.logprobs.text_offset
        assert len(plain.logprobs.tokens) == 12
        assert parts[-1].finish_reason == "length"
        assert chunks[-1].usage.completion_tokens == 12


async def test_an_end_token_is_counted_but_not_shown(run_dir, tiny_model_path):
    def script(request: AddRequest, index: int) -> int:
        return [20, 21, 2][index]

    async with running(run_dir, tiny_model_path, next_token=script, eos_token_id=2) as stand:
        http = await stand.http()
        body = {"model": "tiny", "prompt": "a", "logprobs": 0, "return_token_ids": True}

        answer = (await http.post("/v1/completions", json=body)).json()
        ignoring = (
            await http.post("/v1/completions", json={**body, "max_tokens": 2, "ignore_eos": True})
        ).json()

        choice = answer["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert "<|im_end|>" not in choice["text"]
        assert choice["token_ids"] == [20, 21, 2]
        assert answer["usage"]["completion_tokens"] == 3
        assert len(choice["logprobs"]["tokens"]) == 3
        assert ignoring["choices"][0]["finish_reason"] == "length"


async def test_models_are_listed_under_every_served_name(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        sdk = await stand.sdk()
        http = await stand.http()

        names = [model.id async for model in sdk.models.list()]
        alias = await sdk.models.retrieve("alias")
        unknown = await http.get("/v1/models/SECRET")
        asked = await http.post("/v1/completions", json={"model": "SECRET", "prompt": "a"})

        assert names == ["tiny", "alias"]
        assert alias.id == "alias"
        for answer in (unknown, asked):
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "model_not_found"
            assert answer.json()["error"]["param"] == "model"
            assert "SECRET" not in answer.text


async def test_tokenize_and_detokenize_are_inverse(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()
        text = "na\u00efve \U0001f600 <|im_end|>"

        tokens = (await http.post("/tokenize", json={"prompt": text})).json()
        back = (await http.post("/detokenize", json={"tokens": tokens["tokens"]})).json()
        chat = await http.post(
            "/tokenize", json={"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
        )
        beyond = await http.post("/detokenize", json={"tokens": [10**6]})

        assert tokens["count"] == len(tokens["tokens"])
        assert tokens["max_model_len"] == 512
        assert back["prompt"] == text
        assert 1 in chat.json()["tokens"]  # <|im_start|>
        assert beyond.status_code == 400


async def test_the_probes_need_no_key_and_tell_the_state(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http(key=None)
        assert (await http.get("/livez")).status_code == 200
        assert (await http.get("/readyz")).json() == {"status": "ready"}

        await stand.supervisor.moved(state="starting", phase="weights", done=4, total=10)
        progress = await http.get("/startupz")
        unready = await http.get("/health")
        await stand.supervisor.moved(state="asleep")
        asleep = await http.get("/readyz")

        assert progress.json()["engines"][0] == {
            "id": "e0", "model": "tiny", "state": "starting",
            "phase": "weights", "done": 4, "total": 10,
        }  # fmt: skip
        assert unready.status_code == 503
        assert asleep.status_code == 200  # a request would wake it
