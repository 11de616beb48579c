"""`LLM` and `AsyncLLM` on a tiny model: what they answer, and that all of them answer the same."""

import asyncio
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from engine.checkpoint.errors import CheckpointError
from engine.client.core_client import EngineDeadError, EngineStartError, UtilityCallError
from engine.llm import LLM, AsyncLLM, SamplingParams, StructuredOutputs
from engine.offline.prompts import PromptError
from tests.lora import make_adapter

pytestmark = [pytest.mark.process]

SMALL = {"num_threads": 1, "kv_cache_bytes": 8 << 20, "max_num_seqs": 8, "dtype": "float32"}
PROMPTS = ["The capital of France", "An engine", "0123", [5, 6, 7], {"prompt": "day and night"}]
SEEDED = SamplingParams(max_tokens=12, temperature=0.9, seed=11, top_p=0.9)
GREEDY = SamplingParams(max_tokens=12, temperature=0)


@pytest.fixture(scope="module")
def llm(tiny_model_path: Path) -> Iterator[LLM]:
    with LLM(tiny_model_path, **SMALL) as llm:
        yield llm


@pytest.fixture(scope="module")
def pair(tiny_model_path: Path) -> Iterator[LLM]:
    """Two engines, for two tests: the last one kills an engine."""
    with LLM(tiny_model_path, num_engines=2, **SMALL) as llm:
        yield llm


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[tuple[int, ...]]:
    """The seeded answers, each prompt alone."""
    return [llm.generate(prompt, SEEDED)[0].token_ids for prompt in PROMPTS]


def test_prompts_in_a_batch_are_answered_as_alone_and_in_order(llm: LLM, expected):
    results = llm.generate(PROMPTS * 6, SEEDED, use_tqdm=False)

    assert [result.token_ids for result in results] == expected * 6
    assert [result.prompt for result in results[:5]] == [*PROMPTS[:3], None, "day and night"]
    assert results[3].prompt_token_ids == (5, 6, 7)
    assert all(result.finish_reason in {"length", "stop"} for result in results)


def test_an_engine_in_this_process_gives_the_same_tokens(tiny_model_path: Path, expected):
    with LLM(tiny_model_path, multiprocess=False, **SMALL) as llm:
        assert [result.token_ids for result in llm.generate(PROMPTS, SEEDED)] == expected

        llm.sleep()
        assert llm.generate("x")[0].error.startswith("engine_asleep")
        llm.wake()
        assert llm.generate(PROMPTS[0], SEEDED)[0].token_ids == expected[0]
        with pytest.raises(UtilityCallError, match="invalid"):
            llm.unload_adapter("nobody")
    with pytest.raises(EngineDeadError, match="closed"):
        llm.generate("x")


def test_two_engines_share_the_prompts_and_give_the_same_tokens(
    tmp_path: Path, tiny_model_path: Path, pair: LLM, expected
):
    assert list(pair.engines) == ["e0", "e1"]
    assert [result.token_ids for result in pair.generate(PROMPTS * 4, SEEDED)] == expected * 4
    assert min(pair._balancer._given.values()) >= 8
    assert set(pair.sleep()) == set(pair.wake()) == {"e0", "e1"}

    path = make_adapter(tmp_path / "lora", rank=4, seed=1, model_dir=tiny_model_path)
    assert pair.load_adapter("pirate", path).rank == 4
    results = pair.generate([PROMPTS[0]] * 8, SEEDED, adapter="pirate")
    adapted = {result.token_ids for result in results}
    assert len(adapted) == 1, "in both engines"
    assert adapted != {expected[0]}
    assert pair.generate(PROMPTS[0], SEEDED)[0].token_ids == expected[0]
    assert [each.name for each in pair.list_adapters().adapters] == ["pirate"]
    pair.unload_adapter("pirate")
    assert "adapter_not_loaded" in pair.generate("x", adapter="pirate")[0].error


def test_several_answers_have_seeds_of_their_own(llm: LLM):
    params = SamplingParams(max_tokens=12, temperature=0.9, seed=11, top_p=0.9, n=3)
    (result,) = llm.generate("An engine", params)

    assert [output.index for output in result.outputs] == [0, 1, 2]
    assert len({output.token_ids for output in result.outputs}) == 3
    for k, output in enumerate(result.outputs):
        alone = SamplingParams(max_tokens=12, temperature=0.9, seed=11 + k, top_p=0.9)
        assert llm.generate("An engine", alone)[0].token_ids == output.token_ids


def test_a_seed_of_the_front_end_makes_whole_programs_repeatable(tiny_model_path: Path):
    texts = []
    for _ in range(2):
        with LLM(tiny_model_path, multiprocess=False, seed=5, **SMALL) as llm:
            texts.append([result.text for result in llm.generate(["a", "a"]) + llm.generate("a")])

    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 3, "each request has a seed of its own"


def test_stop_strings_end_an_answer_and_are_cut_off(llm: LLM):
    (whole,) = llm.generate("The capital of France", GREEDY)
    stop = whole.text[4:6]
    at = whole.text.index(stop)

    params = SamplingParams(max_tokens=12, temperature=0, stop=stop)
    (result,) = llm.generate("The capital of France", params)

    assert result.text == whole.text[:at]
    assert result.finish_reason == "stop"
    assert result.outputs[0].stop_reason == stop
    assert len(result.token_ids) <= len(whole.token_ids)


def test_bad_words_do_not_come(llm: LLM):
    (free,) = llm.generate("hello", GREEDY)
    word = llm.tokenizer.token_text(free.token_ids[0])
    params = SamplingParams(max_tokens=12, temperature=0, bad_words=(word,))

    assert free.token_ids[0] not in llm.generate("hello", params)[0].token_ids


def test_logprobs_have_an_entry_for_each_token(llm: LLM):
    params = SamplingParams(max_tokens=5, temperature=0, logprobs=2, prompt_logprobs=1)
    (result,) = llm.generate("The capital", params)

    assert [entry.token_id for entry in result.logprobs] == list(result.token_ids)
    assert all(len(entry.top) == 2 for entry in result.logprobs)
    assert len(result.prompt_logprobs) == len(result.prompt_token_ids) - 1


def test_structured_outputs_match_what_was_asked(llm: LLM):
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    params = [
        SamplingParams(max_tokens=40, structured_outputs=StructuredOutputs(json=schema)),
        SamplingParams(max_tokens=40, structured_outputs=StructuredOutputs(choice=("yes", "no"))),
        SamplingParams(max_tokens=40, structured_outputs=StructuredOutputs(regex="[a-c]{4}")),
        SamplingParams(max_tokens=40, structured_outputs=StructuredOutputs(regex="(")),
    ]
    as_json, choice, regex, broken = llm.generate(["x"] * 4, params)

    assert isinstance(json.loads(as_json.text)["ok"], bool)
    assert choice.text in {"yes", "no"}
    assert len(regex.text) == 4
    assert "invalid_grammar" in broken.error
    assert broken.finish_reason == "error"


def test_chat_uses_the_models_template(llm: LLM):
    one = [{"role": "user", "content": "hello"}]
    (alone,) = llm.chat(one, GREEDY)
    both = llm.chat([one, [{"role": "system", "content": "x"}, *one]], GREEDY)

    rendered = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert llm.tokenizer.decode(alone.prompt_token_ids, skip_special_tokens=False) == rendered
    assert both[0].token_ids == alone.token_ids
    assert both[1].prompt_token_ids != alone.prompt_token_ids
    assert llm.chat([]) == []
    for wrong in ("hello", ["hello"], [one, "hello"], [one[0], one]):
        with pytest.raises(TypeError, match="a list of messages"):
            llm.chat(wrong)


def test_bad_prompts_have_an_error_and_do_not_hurt_the_others(llm: LLM, expected):
    results = llm.generate([PROMPTS[0], "", "long " * 1000, [10**6]], SEEDED)

    assert results[0].token_ids == expected[0]
    assert [result.error is None for result in results] == [True, False, False, False]
    assert "1000" not in results[1].error
    assert "context" in results[2].error
    assert "vocabulary" in results[3].error
    with pytest.raises(ValueError, match="2 prompts, but 1"):
        llm.generate(["a", "b"], [GREEDY])
    for wrong in ({"temperature": 0}, [{"temperature": 0}]):
        with pytest.raises(TypeError, match="must be SamplingParams"):
            llm.generate("a", wrong)


def test_a_stream_takes_prompts_as_there_is_room_and_can_be_left_early(llm: LLM, expected):
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield f"prompt {taken}"

    stream = llm.stream(endless(), GREEDY)
    for _ in range(20):
        next(stream)
    assert taken <= 20 + 2 * llm._window
    with pytest.raises(RuntimeError, match="one call at a time"):
        llm.generate("x")
    stream.close()

    assert llm.generate(PROMPTS[0], SEEDED)[0].token_ids == expected[0]


def test_long_answers_end_with_the_context(llm: LLM):
    (result,) = llm.generate("x " * 200, SamplingParams(max_tokens=None, ignore_eos=True))

    assert len(result.prompt_token_ids) + len(result.token_ids) == llm.max_model_len
    assert result.finish_reason == "length"


def test_an_engine_that_dies_is_an_error_for_who_waits_and_for_who_comes(pair: LLM):
    youngest = max(psutil.Process().children(), key=lambda child: child.create_time())
    stream = pair.stream(["x"] * 100, SamplingParams(max_tokens=400, ignore_eos=True))
    next(stream)
    youngest.kill()

    with pytest.raises(EngineDeadError, match=r"engine e[01] .*ended with -9"):
        list(stream)
    with pytest.raises(EngineDeadError, match=r"engine e[01] "):
        pair.generate(["x"] * 8)


def test_a_forked_process_is_told_that_the_engines_are_not_its_own(llm: LLM):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fork beside threads, from Python 3.12
        child = os.fork()
    if child == 0:
        told = False
        try:
            llm.generate("x")
        except RuntimeError as error:
            told = "forked" in str(error)
            llm.close()
            llm._client._finalizer()  # what the end of the interpreter would do
        finally:
            os._exit(0 if told else 1)
    _, status = os.waitpid(child, 0)

    assert status == 0
    assert llm.generate("x", GREEDY)[0].error is None, "the engine lives on"


def test_what_cannot_start_says_why(tmp_path: Path, tiny_model_path: Path):
    with pytest.raises(CheckpointError, match="does not exist"):
        LLM(tmp_path / "nothing.gguf")
    with pytest.raises(TypeError, match="did you mean max_model_len"):
        LLM(tiny_model_path, max_model_length=8)
    with pytest.raises(TypeError, match="block_size"):
        LLM(tiny_model_path, block_size="big")
    with pytest.raises(EngineStartError, match="block_size must be at least 1"):
        LLM(tiny_model_path, block_size=0)
    with pytest.raises(ValueError, match="one in this process"):
        LLM(tiny_model_path, multiprocess=False, num_engines=2)


@pytest.mark.anyio
async def test_an_asyncio_front_end_that_cannot_start_says_the_same(tiny_model_path: Path):
    with pytest.raises(EngineStartError, match="block_size must be at least 1"):
        async with AsyncLLM(tiny_model_path, block_size=0):
            pass


@pytest.mark.anyio
async def test_the_asyncio_front_end_yields_as_tokens_come(tiny_model_path: Path, expected):
    async with AsyncLLM(tiny_model_path, **SMALL) as llm:

        async def answer(prompt: object) -> tuple[int, ...]:
            deltas = [delta async for delta in llm.generate(prompt, SEEDED)]
            assert deltas[-1].finish_reason is not None
            return tuple(token for delta in deltas for token in delta.token_ids)

        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(answer(prompt)) for prompt in PROMPTS * 3]
        assert [task.result() for task in answers] == expected * 3

        texts = ["", "", ""]
        params = SamplingParams(max_tokens=12, temperature=0.9, seed=11, top_p=0.9, n=3)
        async for delta in llm.generate(PROMPTS[0], params):
            texts[delta.index] += delta.text
        assert texts[0] == llm_text(llm, expected[0])
        assert len(set(texts)) == 3

        endless = llm.generate("x", SamplingParams(max_tokens=None, ignore_eos=True))
        await anext(endless)
        await endless.aclose()
        assert llm.client.load.total() == 0

        with pytest.raises(PromptError):
            await anext(llm.generate(""))
        await llm.sleep(mode="abort")
        assert "asleep" in [delta async for delta in llm.generate("x")][-1].error
        await llm.wake()

        waits = llm.generate("x", SamplingParams(max_tokens=None, ignore_eos=True))
        await anext(waits)
    with pytest.raises(EngineDeadError, match="closed"):
        async for _ in waits:
            pass


def llm_text(llm: AsyncLLM, token_ids: tuple[int, ...]) -> str:
    return llm._running()[1].tokenizer.decode(token_ids)
