"""A request's tokens do not depend on anything but the request.

200 requests with random parameters run alone, and then in mixtures with random budgets, places,
numbers of blocks, chunk sizes, guesses, cached prefixes and adapters: the same tokens, always.
"""

import dataclasses
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.core.batch import ModelFacts, StepResult
from engine.core.loop import EngineCore
from engine.core.runner import TorchRunner
from engine.wire.calls import AdapterState, LoadAdapter
from engine.wire.messages import (
    AddRequest,
    FinishReason,
    Grammar,
    GrammarKind,
    SamplingParams,
    UtilityReply,
)
from tests.engine.core.core_bench import CoreBench
from tests.engine.models.harness import engine_config
from tests.lora import make_adapter

NUM_REQUESTS = 200
NUM_MIXTURES = 50
IN_A_MIXTURE = 16
BLOCK = 8
ADAPTERS = ("pirate", "poet")
GRAMMARS = (
    Grammar(kind=GrammarKind.REGEX, source="[a-f]{3,9}"),
    Grammar(kind=GrammarKind.CHOICE, source='["yes", "no", "maybe"]'),
)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory, tiny_model_path: Path) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("adapters")
    return {
        name: make_adapter(base / name, rank=4 + 3 * index, seed=index, model_dir=tiny_model_path)
        for index, name in enumerate(ADAPTERS)
    }


KERNELS = {
    "reference-float32": {"kernels": "reference", "dtype": "float32"},
    "reference-bfloat16": {"kernels": "reference", "dtype": "bfloat16"},
    "cpu-none": {"kernels": "cpu", "quantization": "none", "num_threads": 2},
    "cpu-int8": {"kernels": "cpu", "quantization": "int8", "num_threads": 1},
    "cpu-w4-kv-int8": {
        "kernels": "cpu", "quantization": "w4", "kv_cache_dtype": "int8", "num_threads": 2,
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=KERNELS)
def loaded(request, tiny_model_path: Path) -> Iterator[tuple[TorchRunner, ModelFacts]]:
    options = KERNELS[request.param]
    runner = TorchRunner(
        engine_config(tiny_model_path, block_size=BLOCK, max_num_seqs=64, **options)
    )
    facts = runner.load(lambda _phase, _done, _total: None)
    yield runner, facts
    _KEPT.pop(runner).shut_down()


def a_request(chance: random.Random, name: str) -> AddRequest:
    """A prompt with repeats (so that guesses hit) and a shared beginning (so that prefixes do)."""
    shared = [7, 8, 9, 10, 11, 12, 13, 14] * chance.randint(0, 4)
    own = [chance.randrange(3, 400) for _ in range(chance.randint(1, 40))]
    sampling = SamplingParams(
        max_tokens=chance.randint(1, 14),
        temperature=chance.choice([0.0, 0.0, 0.7, 1.3]),
        seed=chance.randrange(2**40),
        top_k=chance.choice([None, None, 5, 50]),
        top_p=chance.choice([1.0, 1.0, 0.9]),
        min_p=chance.choice([0.0, 0.0, 0.05]),
        repetition_penalty=chance.choice([1.0, 1.0, 1.2]),
        frequency_penalty=chance.choice([0.0, 0.0, 0.6]),
        presence_penalty=chance.choice([0.0, 0.0, -0.4]),
        logit_bias=chance.choice([(), (), ((30, 4.0), (31, -4.0))]),
        bad_words=chance.choice([(), (), ((40,), (41, 42))]),
        min_tokens=chance.choice([0, 0, 1]),
        logprobs=chance.choice([None, None, 2]),
        prompt_logprobs=chance.choice([None, None, None, None, 1]),
        ignore_eos=chance.random() < 0.5,
    )
    return AddRequest(
        request_id=name,
        prompt_token_ids=tuple(shared + own + own[: chance.randint(0, 6)]),
        sampling=sampling,
        arrival_ns=0,
        priority=chance.randint(-1, 1),
        tenant=chance.choice([None, "a", "b"]),
        adapter=chance.choice([None, None, *ADAPTERS]),
        cache_salt=chance.choice([None, None, "s"]),
        grammar=chance.choice([None, None, None, *GRAMMARS]),
    )


def new_core(loaded: tuple[TorchRunner, ModelFacts], adapters: dict[str, Path], **options: object):
    """A core around the same model; its adapters and compiled grammars are kept from the first."""
    runner, _ = loaded
    bench = CoreBench(loaded=loaded, block_size=BLOCK, max_loras=2, **options)
    kept = _KEPT.setdefault(runner, bench.core)
    if kept is not bench.core:
        bench.core.intake.close()
        bench.core.intake.grammars = kept.intake.grammars
        return bench
    for name, path in adapters.items():
        call = LoadAdapter(name=name, path=str(path))
        bench.call(call, call_id=name, timeout_s=1e7)  # the clock ticks with each look
        while not any(reply.call_id == name for reply in bench.bodies(UtilityReply)):
            time.sleep(0.001)
            bench.turn()
        bench.reply(AdapterState, name)
    runner.adapter_store = lambda _on_ready: kept.adapters
    return bench


_KEPT: dict[TorchRunner, EngineCore] = {}


def finish(bench: CoreBench) -> None:
    while bench.core.scheduler.requests:  # grammars are compiled in the background
        bench.core.step()


def outcome(bench: CoreBench, name: str) -> tuple[object, ...]:
    last = bench.last(name)
    assert last.finish_reason in (FinishReason.STOP, FinishReason.LENGTH), last
    logprobs = [entry for output in bench.outputs(name) for entry in output.logprobs or ()]
    of_prompt = [entry for output in bench.outputs(name) for entry in output.prompt_logprobs or ()]
    return bench.tokens(name), logprobs, of_prompt, last.finish_reason, last.stop_token_id


def outcomes_alone(loaded, adapters, requests: list[AddRequest]) -> dict[str, tuple[object, ...]]:
    solitary = new_core(loaded, adapters, prefix_caching=False)
    for request in requests:
        solitary.send(request)
        finish(solitary)
    return {request.request_id: outcome(solitary, request.request_id) for request in requests}


def test_200_requests_give_the_same_tokens_alone_and_in_50_mixtures(loaded, adapters):
    chance = random.Random(20)
    requests = [a_request(chance, f"r{number}") for number in range(NUM_REQUESTS)]
    alone = outcomes_alone(loaded, adapters, requests)
    preempted = cached = drafted = 0
    runner, facts = loaded
    for _ in range(NUM_MIXTURES):
        few_blocks = dataclasses.replace(facts, num_blocks=chance.choice([16, 40, 400]))
        bench = new_core(
            (runner, few_blocks),
            adapters,
            max_num_batched_tokens=chance.choice([16, 37, 64, 256]),
            max_num_seqs=chance.choice([3, 9, 24]),
            long_prefill_threshold=chance.choice([0, 8, 16]),
            speculative_tokens=chance.choice([0, 0, 4]),
            prefix_caching=chance.random() < 0.7,
            policy=chance.choice(["fcfs", "priority", "fair"]),
            predict_lengths=chance.random() < 0.5,
        )
        mixture = chance.sample(requests, IN_A_MIXTURE)
        for request in mixture:
            bench.send(request)
            for _ in range(chance.choice([0, 0, 1, 2])):
                bench.core.step()
        finish(bench)

        for request in mixture:
            assert outcome(bench, request.request_id) == alone[request.request_id], request
        preempted += bench.core.accounts.preemptions
        cached += bench.core.scheduler.counts.cached_tokens
        drafted += bench.core.scheduler.counts.accepted_tokens

    assert preempted > 20
    assert cached > 500
    assert drafted > 5


def test_steps_that_fail_half_way_and_are_tried_again_change_nothing(
    loaded, adapters, monkeypatch: pytest.MonkeyPatch
):
    chance = random.Random(21)
    requests = [a_request(chance, f"r{number}") for number in range(IN_A_MIXTURE)]
    alone = outcomes_alone(loaded, adapters, requests)
    runner, facts = loaded
    few_blocks = dataclasses.replace(facts, num_blocks=24)
    options = {"max_num_batched_tokens": 40, "max_num_seqs": 9, "speculative_tokens": 4}
    bench = new_core((runner, few_blocks), adapters, **options)
    execute, failures = runner.execute, 0

    def fail_now_and_then(batch) -> StepResult:
        nonlocal failures
        if len(batch) == 1 or chance.random() < 0.6:
            return execute(batch)
        execute(batch[: chance.randint(1, len(batch))])
        failures += 1
        raise RuntimeError("the rest was not computed")

    monkeypatch.setattr(runner, "execute", fail_now_and_then)
    for request in requests:
        bench.send(request)
        bench.core.step()
    finish(bench)

    for request in requests:
        assert outcome(bench, request.request_id) == alone[request.request_id], request
    assert failures > 10
