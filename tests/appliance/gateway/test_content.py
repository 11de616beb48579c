"""Prompts and outputs are recorded only where the operator, the key and its scope all agree."""

import json
from collections.abc import Callable

import msgspec
import pytest

from appliance.control_link.messages import GatewayRecords, Recording
from appliance.gateway.content import (
    MAX_BYTES,
    Content,
    ContentSink,
    bounded_json,
    prompt_messages,
)
from appliance.gateway.generation import Delta
from appliance.gateway.openai.collected import Collected
from appliance.telemetry.records import RequestRecord
from tests.appliance.gateway.fake_supervisor import MODEL, FakeSupervisor
from tests.appliance.gateway.stand import CHAT, Stand, running

pytestmark = pytest.mark.anyio

COMPLETION = {"model": MODEL, "prompt": ["one", "two"], "max_tokens": 3, "n": 2}
NEITHER = (None, None)


def allowing(supervisor: FakeSupervisor) -> None:
    """Content is on, and the inference key allows it."""
    supervisor.recording = Recording(content=True)
    supervisor.keys = tuple(
        msgspec.structs.replace(key, allows_content=key.scope == "inference")
        for key in supervisor.keys
    )


def only_on(supervisor: FakeSupervisor) -> None:
    supervisor.recording = Recording(content=True)


def only_key(supervisor: FakeSupervisor) -> None:
    allowing(supervisor)
    supervisor.recording = Recording()


def recording_off(supervisor: FakeSupervisor) -> None:
    allowing(supervisor)
    supervisor.recording = Recording(enabled=False, content=True)


async def last_record(stand: Stand) -> RequestRecord:
    batch = await stand.supervisor.hear(GatewayRecords, lambda body: bool(body.finished))
    return batch.finished[-1]


async def test_a_chat_is_recorded_as_messages(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path, prepare=allowing) as stand:
        http = await stand.http()
        answer = (await http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 20})).json()
        record = await last_record(stand)

    assert json.loads(record.input_content) == [
        {"role": "user", "parts": [{"type": "text", "content": "The capital"}]}
    ]
    said = answer["choices"][0]["message"]["content"]
    assert json.loads(record.output_content) == [
        {
            "role": "assistant",
            "parts": [{"type": "text", "content": said}],
            "finish_reason": "length",
        }
    ]


async def test_every_choice_of_every_prompt_is_recorded(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path, prepare=allowing) as stand:
        http = await stand.http()
        answer = (await http.post("/v1/completions", json=COMPLETION)).json()
        record = await last_record(stand)

    prompts = [message["parts"][0]["content"] for message in json.loads(record.input_content)]
    assert prompts == ["one", "two"]
    outputs = [message["parts"][0]["content"] for message in json.loads(record.output_content)]
    assert outputs == [choice["text"] for choice in answer["choices"]]


@pytest.mark.parametrize("prepare", [only_on, only_key, recording_off, lambda _: None])
async def test_without_both_consents_nothing_is_recorded(
    run_dir, tiny_model_path, prepare: Callable[[FakeSupervisor], None]
):
    async with running(run_dir, tiny_model_path, prepare=prepare) as stand:
        http = await stand.http()
        await http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 3})
        await stand.supervisor.totals(1)
        records = stand.supervisor.records

    assert all((r.input_content, r.output_content) == NEITHER for r in records)


async def test_the_local_user_has_no_key_that_could_allow_it(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path, prepare=allowing) as stand:
        http = await stand.local_http()
        await http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 3})
        record = await last_record(stand)

    assert (record.input_content, record.output_content) == NEITHER


async def test_what_was_said_before_a_failure_is_recorded(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path, prepare=allowing, step_s=0.02) as stand:
        http = await stand.http()
        body = {**CHAT, "max_tokens": 400, "stream": True}
        async with http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.aiter_lines()
            while "content" not in await anext(lines):
                pass
            await stand.kill_engine()
            async for _ in lines:
                pass
        record = await last_record(stand)

    (message,) = json.loads(record.output_content)
    assert message["finish_reason"] == "error"


async def test_switching_off_forgets_what_runs(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path, prepare=allowing, step_s=0.02) as stand:
        http = await stand.http()
        body = {**CHAT, "max_tokens": 60, "stream": True}
        async with http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.aiter_lines()
            while "content" not in await anext(lines):
                pass
            stand.supervisor.recording = Recording(content=False)
            await stand.supervisor.acked(stand.supervisor.publish())
            async for _ in lines:
                pass
        record = await last_record(stand)

    assert (record.input_content, record.output_content) == NEITHER


async def test_a_choice_that_begins_again_is_recorded_once():
    content, collected = Content("[]"), Collected(1)
    sink = ContentSink(collected, content)
    await sink.emit(Delta(0, "lost with its engine"))
    sink.restart(0)
    await sink.emit(Delta(0, "said", finish_reason="stop"))

    (message,) = json.loads(content.output)
    assert message["parts"][0]["content"] == collected.choices[0].text == "said"
    assert not sink.has_delivered


@pytest.mark.parametrize(
    "text", ["x" * 100_000, "\x00" * 100_000, "\U0001f600" * 50_000, '"' * 40_000, ""]
)
def test_content_is_bounded_and_says_what_is_cut(text: str):
    written = bounded_json(prompt_messages({"prompt": text}))

    assert len(written.encode()) <= MAX_BYTES
    kept = json.loads(written)[0]["parts"][0]["content"]
    if text:
        assert kept.endswith("characters cut]")
        assert len(kept) > 1000


def test_many_messages_are_bounded_too():
    messages = [{"role": "user", "content": f"{number} " + "y" * 50} for number in range(5000)]
    written = bounded_json(prompt_messages({"messages": messages}))

    assert len(written.encode()) <= MAX_BYTES
    *_, last = json.loads(written)
    assert last["parts"][0]["content"].endswith("more messages cut]")


def test_prompts_of_every_shape_become_messages():
    def texts(prompt: object) -> list[str]:
        return [m["parts"][0]["content"] for m in prompt_messages({"prompt": prompt})]

    assert texts("a") == ["a"]
    assert texts(["a", "b"]) == ["a", "b"]
    assert texts([1, 2]) == ["[1, 2]"]
    assert texts([[1, 2], [3]]) == ["[1, 2]", "[3]"]
