"""The runner: facts, steps, faults of single requests, and memory that comes and goes."""

import errno
from pathlib import Path

import pytest

from engine.core import memory, model_source
from engine.core.batch import ConfigError, ModelRunner
from engine.core.canary import NUM_TOKENS, canary_tokens
from engine.core.runner import TorchRunner
from engine.core.scheduler import make_scheduler
from engine.kernels.cpu import loading
from engine.kernels.cpu.library import instruction_sets
from engine.wire.messages import SamplingParams
from tests.engine.models.harness import engine_config, make_runner, share
from tests.tiny_model import make_tiny_model

PROMPT = [5, 9, 30, 41, 7]


@pytest.fixture(scope="module")
def runner(tiny_model_path: Path) -> ModelRunner:
    return make_runner(tiny_model_path)


def generate(runner: ModelRunner, count: int = 8) -> list[int]:
    tokens, done = list(PROMPT), 0
    for _ in range(count):
        result = runner.execute([share(tokens[done:], done, blocks=[4, 2])])
        done = len(tokens)
        tokens.extend(result.token_ids["r"])
    return tokens[len(PROMPT) :]


def test_load_reports_phases_in_order_and_the_facts(tiny_model_path):
    seen: list[tuple[str, int, int]] = []
    runner = TorchRunner(engine_config(tiny_model_path))

    facts = runner.load(lambda phase, done, total: seen.append((phase, done, total)))

    phases = [phase for phase, _, _ in seen]
    assert sorted(set(phases), key=phases.index) == ["weights", "kv_cache", "kernels", "warm_up"]
    last = {phase: (done, total) for phase, done, total in seen}
    assert all(done == total > 0 for done, total in last.values())
    assert facts.architecture == "LlamaForCausalLM"
    assert (facts.dtype, facts.device, facts.kernel_backend) == ("bfloat16", "cpu", "cpu")
    assert (facts.kernel_path, facts.quantization) == (instruction_sets()[0], "none")
    assert facts.kv_cache_dtype == "bfloat16"
    assert facts.max_model_len == 512
    assert facts.eos_token_ids == (2,)
    assert facts.kv_cache_bytes == facts.num_blocks * 2 * 2 * 16 * 2 * 16 * 2
    assert facts.weights_bytes > 0


def test_a_chunk_that_is_not_the_last_gives_no_token(runner):
    request = share(PROMPT, blocks=[0])
    request.samples = False

    result = runner.execute([request])

    assert not result.token_ids
    assert not result.faults


def test_an_empty_batch_gives_an_empty_result(runner):
    assert not runner.execute([]).token_ids


def test_a_prompt_of_any_length_is_computed(runner):
    for length in range(1, 513, 3):
        assert not runner.execute([share([7] * length, blocks=range(32))]).faults, length


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (share([5, 10**9], blocks=[0]), "vocabulary"),
        (share([-1], blocks=[0]), "vocabulary"),
        (share([], blocks=[0]), "no tokens"),
        (share([1] * 17, blocks=[0]), "blocks do not hold"),
        (share([1], blocks=[10**6]), "outside the cache"),
        (share([1], 512, blocks=range(40)), "do not fit"),
        (share([1], blocks=[0], sampling=SamplingParams(max_tokens=1, top_p=9.0)), "top_p"),
    ],
)
def test_a_bad_request_fails_alone(runner, bad, reason):
    wanted = generate(runner, 1)
    good = share(PROMPT, blocks=[4], request_id="good")

    result = runner.execute([bad, good])

    assert reason in result.faults["r"]
    assert result.token_ids == {"good": (wanted[0],)}


@pytest.mark.parametrize("level", [1, 2])
def test_released_weights_come_back_with_the_same_text(tiny_model_path, level):
    runner = make_runner(tiny_model_path)
    before = generate(runner)

    runner.release(level)
    runner.restore(lambda _phase, _done, _total: None)

    assert generate(runner) == before


@pytest.mark.parametrize("kernels", ["cpu", "reference"])
@pytest.mark.parametrize("budget", [1, 3, 32])
def test_a_small_token_budget_is_enough_for_the_steps_of_the_engine_itself(
    tiny_model_path, budget, kernels
):
    fields = {"max_num_batched_tokens": budget, "max_num_seqs": 1, "kernels": kernels}
    config = engine_config(tiny_model_path, **fields)
    runner = TorchRunner(config)

    facts = runner.load(lambda *_: None)

    assert len(canary_tokens(runner, make_scheduler(config, facts), facts.vocab_size)) == NUM_TOKENS


def test_an_explicit_context_length_is_kept(tiny_model_path):
    runner = TorchRunner(engine_config(tiny_model_path, max_model_len=100))

    assert runner.load(lambda *_: None).max_model_len == 100


def test_the_cache_limits_the_context_when_nothing_was_asked(tiny_model_path):
    runner = TorchRunner(engine_config(tiny_model_path, kv_cache_bytes=5 * 4096))

    facts = runner.load(lambda *_: None)

    assert (facts.num_blocks, facts.max_model_len) == (5, 80)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"device": "tpu"}, "tpu"),
        ({"device": "meta"}, "not supported"),
        ({"device": "cuda:7"}, "not there"),
        ({"dtype": "int3"}, "unknown"),
        ({"max_model_len": 4096}, "512"),
        ({"kv_cache_bytes": 100}, "one block needs"),
        ({"kv_cache_bytes": 1 << 50}, "this machine has"),
        ({"kv_cache_bytes": 4096, "max_model_len": 100}, "needs a KV cache"),
        ({"block_size": 0}, "block_size"),
        ({"num_threads": 0}, "num_threads must be from 1"),
        ({"num_threads": 10**6}, "num_threads must be from 1"),
        ({"max_num_batched_tokens": (1 << 18) + 1}, "max_num_batched_tokens"),
        ({"max_num_batched_tokens": (1 << 32) + 512}, "max_num_batched_tokens"),
        ({"model": "/nowhere/at/all"}, "does not exist"),
    ],
)
def test_what_can_never_work_is_a_configuration_error(tiny_model_path, fields, reason):
    config = engine_config(tiny_model_path)
    runner = TorchRunner(engine_config(Path(fields.pop("model", config.model)), **fields))

    with pytest.raises(ConfigError, match=reason):
        runner.load(lambda *_: None)


def test_threads_that_cannot_be_made_are_a_configuration_error(tiny_model_path, monkeypatch):
    def no_threads(count: int) -> None:
        raise MemoryError(f"{count} threads could not be made")

    monkeypatch.setattr(model_source, "Pool", no_threads)

    with pytest.raises(ConfigError, match="threads could not be made"):
        TorchRunner(engine_config(tiny_model_path)).load(lambda *_: None)


def test_weights_that_contradict_the_configuration_are_a_configuration_error(tmp_path):
    path = make_tiny_model(tmp_path / "m")
    config = path / "config.json"
    config.write_text(
        config.read_text().replace('"intermediate_size": 128', '"intermediate_size": 96')
    )

    with pytest.raises(ConfigError, match="rows"):
        TorchRunner(engine_config(path)).load(lambda *_: None)


@pytest.mark.parametrize(("kernels", "module"), [("cpu", loading), ("reference", memory)])
def test_too_little_memory_for_weights_is_a_configuration_error(
    kernels, module, tiny_model_path, monkeypatch
):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    runner = TorchRunner(engine_config(tiny_model_path, kernels=kernels))
    monkeypatch.setattr(module.mmap, "mmap", full)

    with pytest.raises(ConfigError, match=r"no memory for .*weights"):
        runner.load(lambda *_: None)


def test_a_missing_tensor_is_a_configuration_error(tmp_path):
    path = make_tiny_model(tmp_path / "m", layers=1)
    config = path / "config.json"
    config.write_text(
        config.read_text().replace('"num_hidden_layers": 1', '"num_hidden_layers": 2')
    )

    with pytest.raises(ConfigError, match=r"layers\.1\."):
        TorchRunner(engine_config(path)).load(lambda *_: None)
