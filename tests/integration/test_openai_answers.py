"""What OpenAI clients rely on, end to end: answers that agree, scores, offsets, honest refusals."""

import concurrent.futures
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from engine.text.tokenizer import Tokenizer
from tests.engine.models.real_models import transformers_model
from tests.integration.appliance_process import ApplianceProcess
from tests.integration.scrapes import assert_sums_close, read

pytestmark = pytest.mark.process

NUM_REQUESTS = 60


# ------------------------------------------------------------ answers agree


def random_fields(rng: random.Random, vocab_size: int) -> dict[str, Any]:
    """A request with any of the sampling fields; `messages` or `prompt` included."""
    max_tokens = rng.choice([1, 5, 24])
    ids = [str(rng.randrange(vocab_size)) for _ in range(4)]
    maybe: dict[str, Any] = {
        "temperature": rng.choice([0, 0.5, 1, 2]),
        "top_p": rng.choice([1e-6, 0.3, 1]),
        "top_k": rng.choice([-1, 1, 5, 1_000_000]),
        "min_p": rng.choice([0, 0.05, 1]),
        "n": rng.choice([2, 3]),
        "frequency_penalty": rng.choice([-2, 2]),
        "presence_penalty": rng.choice([-2, 2]),
        "repetition_penalty": rng.choice([0.01, 1.3, 2]),
        "logit_bias": {token_id: rng.choice([-100, 100, 3.5]) for token_id in ids},
        "bad_words": rng.sample(["the", " a", "e", "\u00e9", "."], 2),
        "min_tokens": rng.randrange(max_tokens + 1),
        "stop": rng.choice([["a"], ["e ", " t"], ["\ufffd"], ["ing", "<|im_end|>"]]),
        "stop_token_ids": [int(token_id) for token_id in ids],
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "return_token_ids": True,
    }
    fields = {name: value for name, value in maybe.items() if rng.random() < 0.3}
    fields |= {"seed": rng.choice([0, -1, 2**63 - 1]), "max_tokens": max_tokens}
    if rng.random() < 0.5:
        text = rng.choice(["hi", "Say caf\u00e9 \u4f60\u597d \U0001f600 many times"])
        chosen = {"logprobs": True, "top_logprobs": rng.choice([0, 2])}
        return fields | {"messages": [{"role": "user", "content": text}]} | chosen
    prompt = rng.choice(["Hello", ["a b", "c d e"], [3, 4, 200], [[5, 6], [9, 10, 11]]])
    fields |= {"prompt": prompt, "logprobs": rng.choice([0, 5])}
    return fields | ({"echo": True} if rng.random() < 0.4 else {})


def ask(appliance: ApplianceProcess, fields: dict[str, Any], *, stream: bool) -> Any:
    """Return the choices by index, joined when streamed, and the usage."""
    path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
    body: dict[str, Any] = {"model": appliance.model} | fields
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    answer = appliance.post(path, body)
    assert answer.status_code == 200, (fields, answer.text)
    if not stream:
        whole = answer.json()
        return joined([whole]), counted(whole["usage"])
    assert answer.text.endswith("data: [DONE]\n\n")
    frames = [json.loads(part[6:]) for part in answer.text.split("\n\n")[:-2]]
    return joined(frames), counted(frames[-1]["usage"])


def joined(frames: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    choices: dict[int, dict[str, Any]] = {}
    for piece in (choice for frame in frames for choice in frame["choices"]):
        whole = choices.setdefault(
            piece["index"], {"text": "", "finish": None, "ids": [], "logprobs": {}}
        )
        assert whole["finish"] is None, "nothing comes after the finish reason"
        said = piece.get("message") or piece.get("delta") or piece
        whole["text"] += said.get("content") or said.get("text") or ""
        whole["finish"] = piece["finish_reason"]
        whole["ids"] += piece.get("token_ids") or []
        for name, values in (piece["logprobs"] or {}).items():
            if values:
                whole["logprobs"].setdefault(name, []).extend(values)
    assert all(whole["finish"] in {"stop", "length"} for whole in choices.values())
    return choices


def counted(usage: dict[str, Any]) -> tuple[int, int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]


def test_an_answer_is_the_same_alone_in_a_crowd_and_streamed(
    tiny_appliance: ApplianceProcess, tiny_model_path: Path
):
    rng = random.Random(4)
    vocab_size = json.loads((tiny_model_path / "config.json").read_text())["vocab_size"]
    requests = [random_fields(rng, vocab_size) for _ in range(NUM_REQUESTS)]
    alone = [ask(tiny_appliance, fields, stream=False) for fields in requests]

    jobs = [(index, stream) for index in range(NUM_REQUESTS) for stream in (False, True)]
    rng.shuffle(jobs)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        again = pool.map(lambda job: ask(tiny_appliance, requests[job[0]], stream=job[1]), jobs)
        for (index, stream), answer in zip(jobs, again, strict=True):
            assert answer == alone[index], (stream, requests[index])
    assert_sums_close(read(tiny_appliance.metrics()))


# ------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"repetition_penalty": 1e-9}, "repetition_penalty"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"structured_outputs": {"grammar": 'start: "a"{1000000}'}}, "structured_outputs"),
        ({"structured_outputs": {"choice": ["b"]}, "bad_words": ["b"]}, None),
        ({"structured_outputs": {"choice": ["b"]}, "allowed_token_ids": [5]}, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_done_is_a_400_and_never_a_500(
    tiny_appliance: ApplianceProcess, fields: dict[str, Any], param: str | None, stream: bool
):
    body = {"model": tiny_appliance.model, "prompt": "Hello", "stream": stream} | fields
    refused = tiny_appliance.post("/v1/completions", body)
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert error["message"]


def test_a_schema_that_would_end_the_engine_is_refused_and_the_engine_lives(
    tiny_appliance: ApplianceProcess,
):
    twice = {f"d{k}": {"allOf": [{"$ref": f"#/$defs/d{k + 1}"}] * 2} for k in range(40)}
    schema = {"$defs": twice | {"d40": {"pattern": "a+"}}, "$ref": "#/$defs/d0"}
    epoch = tiny_appliance.engine()["epoch"]
    named = {"name": "bomb", "schema": schema}
    with pytest.raises(openai.BadRequestError, match="too large, too deep") as refused:
        tiny_appliance.sdk.chat.completions.create(
            model=tiny_appliance.model,
            messages=[{"role": "user", "content": "hi"}],
            response_format={"type": "json_schema", "json_schema": named},  # type: ignore[typeddict-item]
        )
    assert refused.value.param == "response_format"
    assert tiny_appliance.chat("still there?", max_tokens=2).status_code == 200
    assert tiny_appliance.engine()["epoch"] == epoch


# ------------------------------------------------------------ prefix cache


def test_cached_tokens_are_told_and_a_salt_keeps_them_apart(tiny_appliance: ApplianceProcess):
    completions = tiny_appliance.sdk.completions

    def cached(**extra: str) -> int | None:
        answer = completions.create(
            model=tiny_appliance.model,
            prompt="The quick brown fox jumps over the lazy dog. " * 8,
            max_tokens=2,
            extra_body=extra,
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens

    first, second = cached(), cached()
    assert (first, bool(second)) == (0, True)
    assert [cached(cache_salt="one"), cached(cache_salt="one")] == [0, second]
    assert cached(cache_salt="two") == 0


# ------------------------------------------------------------ log-likelihoods

PAIRS = (
    ("The capital of France is", " Paris."),
    ("Q: Is water wet?\nA:", " yes"),
    (
        "na\u00efve caf\u00e9 \u4f60\u597d \U0001f600",
        " \u00fcn\u00efc\u00f6d\u00e9 \U0001f389 done",
    ),
    ("Once upon a time, " * 20, "there was a fox \U0001f98a"),
)


@pytest.fixture(scope="module")
def exact_smollm2(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """SmolLM2 in float32, to be compared with transformers."""
    root = tmp_path_factory.mktemp("exact")
    appliance = ApplianceProcess(root, "smollm2", "--dtype", "float32", "--drain-s", "5")
    try:
        yield appliance.start()
    finally:
        appliance.stop()


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_the_likelihood_of_a_continuation_is_that_of_transformers(
    exact_smollm2: ApplianceProcess, smollm2_path: Path, max_tokens: int
):
    """As lm-eval asks: token ids of context and continuation, echoed with their logprobs."""
    tokenizer, oracle = Tokenizer.load(smollm2_path), transformers_model(smollm2_path)
    contexts = [tokenizer.encode(context) for context, _ in PAIRS]
    prompts = [c + tokenizer.encode(p[1]) for c, p in zip(contexts, PAIRS, strict=True)]
    answer = exact_smollm2.sdk.completions.create(
        model="smollm2", prompt=prompts, echo=True, logprobs=1, max_tokens=max_tokens, temperature=0
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(map(len, prompts))
    assert answer.usage.completion_tokens == max_tokens * len(prompts)

    for context, prompt, choice in zip(contexts, prompts, answer.choices, strict=True):
        logprobs = choice.logprobs
        assert logprobs is not None
        scores, tops = logprobs.token_logprobs or [], logprobs.top_logprobs or []
        tokens, offsets = logprobs.tokens or [], [*(logprobs.text_offset or []), len(choice.text)]
        assert len(scores) == len(prompt) + max_tokens
        assert (scores[0], tops[0]) == (None, None)
        with torch.inference_mode():
            rows = oracle(torch.tensor([prompt]), use_cache=False).logits[0].log_softmax(-1)
        expected = [rows[at - 1, prompt[at]].item() for at in range(len(context), len(prompt))]
        assert sum(scores[len(context) : len(prompt)]) == pytest.approx(  # type: ignore[arg-type]
            sum(expected), abs=1e-4, rel=1e-5
        )
        for at in range(1, len(scores)):
            assert scores[at] == tops[at][tokens[at]]
            is_best = max(tops[at], key=tops[at].__getitem__) == tokens[at]
            assert at >= len(prompt) or is_best is (rows[at - 1].argmax().item() == prompt[at])
        for at, token in enumerate(tokens):
            if not any(name.startswith("bytes:") for name in tokens[max(0, at - 1) : at + 1]):
                assert choice.text[offsets[at] : offsets[at + 1]] == token
