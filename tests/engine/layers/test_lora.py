"""Adapters in a packed batch, against `peft`, against themselves alone, and against no adapter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.core.batch import ScheduledRequest
from tests.engine.core.adapter_bench import AdapterBench
from tests.engine.models.harness import ModelHarness, share
from tests.engine.models.tiny_families import MODELS, TinyModel
from tests.lora import ALL_LINEAR, make_adapter

TOKENS = 24
BLOCKS = 2
"""Of 16 tokens, for each text."""

LLAMA = TinyModel("llama", "Llama")
FAMILIES = (
    "llama_mha_tied_biases",
    "mistral_window_37",
    "qwen2",
    "qwen3_windows_mha_tied_biases",
    "gemma3",
    "phi3_window",
)
FUSED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")
ADAPTERS: Mapping[str, dict] = {
    "one": {"rank": 1, "alpha": 2, "targets": ("q_proj", "v_proj")},
    "eight": {"rank": 8, "alpha": 16},
    "stable": {"rank": 32, "alpha": 8, "use_rslora": True, "targets": QKVO},
    "largest": {
        "rank": 128,
        "alpha": 128,
        "targets": ("k_proj", "gate_proj", "down_proj", "v_proj"),
        "ranks": {"k_proj": 3, "down_proj": 17},
    },
}


@dataclass
class Case:
    """A model, adapters of it, and a text for each."""

    path: Path
    model: ModelHarness
    adapters: AdapterBench
    hashes: dict[str, str] = field(default_factory=dict)

    def text(self, index: int) -> list[int]:
        generator = torch.Generator().manual_seed(index)
        return torch.randint(2, 150, (TOKENS,), generator=generator).tolist()

    def run(self, parts: Sequence[tuple[int, str | None, int]], start: int = 0) -> list[Tensor]:
        """Logits of `(text, adapter, number of tokens)` packed into one step."""
        batch: list[ScheduledRequest] = []
        rows: list[tuple[int, int, str | None]] = []
        at = 0
        for index, name, count in parts:
            blocks = range(index * BLOCKS + 1, index * BLOCKS + 1 + BLOCKS)
            tokens = self.text(index)[start : start + count]
            tables = {"blocks": list(blocks), "window_blocks": list(blocks)}
            batch.append(share(tokens, start, request_id=str(index), **tables))
            rows.append((at, count, None if name is None else self.hashes[name]))
            at += count
        return self.model.step(batch, self.adapters.store.for_step(rows, at))


def make_case(folder: Path, model: TinyModel, dtype: str, adapters: Mapping[str, dict]) -> Case:
    path = folder / "model"
    model.save(path)
    harness = ModelHarness(path, dtype, cache_mib=4)
    case = Case(path, harness, AdapterBench(path, harness.kernels))
    for seed, (name, options) in enumerate(adapters.items()):
        directory = make_adapter(folder / name, seed=seed, model_dir=path, **options)
        case.hashes[name] = case.adapters.load(name, directory).content_hash
        case.adapters.lease(name)
    return case


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Case:
    torch.set_num_threads(1)
    return make_case(tmp_path_factory.mktemp("llama"), LLAMA, "float32", ADAPTERS)


@pytest.fixture(scope="module")
def half_llama(tmp_path_factory: pytest.TempPathFactory) -> Case:
    torch.set_num_threads(1)
    return make_case(tmp_path_factory.mktemp("half"), LLAMA, "bfloat16", ADAPTERS)


def merged_logits(model: TinyModel, adapter: Path, token_ids: list[int]) -> Tensor:
    """What transformers computes with the adapter merged into the weights by `peft`."""
    from peft import PeftModel

    merged = PeftModel.from_pretrained(model.oracle(), str(adapter)).merge_and_unload()
    with torch.inference_mode():
        return merged(torch.tensor([token_ids])).logits[0].float()


MIXTURE: list[tuple[int, str | None, int]] = [
    (0, None, TOKENS),
    (1, "one", TOKENS),
    (2, "eight", TOKENS),
    (3, None, TOKENS),
    (4, "stable", TOKENS),
    (5, "largest", TOKENS),
    (6, "eight", TOKENS),
    (7, None, TOKENS),
]


def test_four_adapters_in_one_batch_equal_the_merged_models(llama: Case):
    logits = llama.run(MIXTURE)

    for (index, name, _), found in zip(MIXTURE, logits, strict=True):
        if name is None:
            with torch.inference_mode():
                wanted = LLAMA.oracle()(torch.tensor([llama.text(index)])).logits[0]
        else:
            wanted = merged_logits(LLAMA, llama.path.parent / name, llama.text(index))
            (base,) = llama.run([(index, None, TOKENS)])
            assert (found - base).abs().max() > 0.1, "it changes nothing"
        assert (found - wanted).abs().max() < 1e-3, name


def test_an_adapter_that_peft_saved_with_patterns_gives_what_peft_computes(tmp_path: Path):
    from peft import LoraConfig, get_peft_model

    case = make_case(tmp_path, LLAMA, "float32", {})
    config = LoraConfig(
        r=6,
        lora_alpha=9,
        target_modules="all-linear",
        rank_pattern={"q_proj": 2, r"layers\.1\.mlp\.up_proj": 11},
        alpha_pattern={"^model.layers.0.self_attn.o_proj": 3.5, "layers.1.*.down_proj": 1.0},
        init_lora_weights=False,
        layers_to_transform=None,
    )
    tuned = get_peft_model(LLAMA.oracle(), config)
    tuned.save_pretrained(str(tmp_path / "patterned"))
    case.hashes["a"] = case.adapters.load("a", tmp_path / "patterned").content_hash

    (found,) = case.run([(0, "a", TOKENS)])

    with torch.inference_mode():
        wanted = tuned(torch.tensor([case.text(0)])).logits[0]
    assert (found - wanted).abs().max() < 1e-3
    assert case.adapters.state("a").rank == 11


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_takes_adapters_of_all_its_layers(tmp_path: Path, name: str):
    (model,) = [model for model in MODELS if model.name == name]
    targets = FUSED if model.family == "Phi3" else ALL_LINEAR
    case = make_case(tmp_path, model, "float32", {"a": {"rank": 4, "targets": targets}})

    (base,), (found,) = case.run([(0, None, TOKENS)]), case.run([(0, "a", TOKENS)])

    wanted = merged_logits(model, tmp_path / "a", case.text(0))
    assert (found - wanted).abs().max() < 1e-3 * max(1.0, wanted.abs().max().item())
    assert not torch.allclose(found, base)
    assert case.adapters.state("a").targets == tuple(sorted(targets))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_base_requests_are_the_same_bit_for_bit_as_without_any_adapter(
    dtype: str, request: pytest.FixtureRequest
):
    case = request.getfixturevalue("llama" if dtype == "float32" else "half_llama")
    with_adapters = case.run(MIXTURE)
    without = case.run([(index, None, count) for index, _, count in MIXTURE])

    for (_, name, _), found, wanted in zip(MIXTURE, with_adapters, without, strict=True):
        assert torch.equal(found, wanted) == (name is None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_request_has_the_same_bits_alone_and_in_any_company(
    dtype: str, request: pytest.FixtureRequest
):
    case = request.getfixturevalue("llama" if dtype == "float32" else "half_llama")
    alone = {index: case.run([(index, name, TOKENS)])[0] for index, name, _ in MIXTURE}
    generator = torch.Generator().manual_seed(0)

    for size in (8, 8, 5, 3, 2):
        order = torch.randperm(len(MIXTURE), generator=generator)[:size].tolist()
        parts = [MIXTURE[at] for at in order]
        for (index, name, _), found in zip(parts, case.run(parts), strict=True):
            assert torch.equal(found, alone[index]), (name, order)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_chunks_and_single_tokens_have_the_bits_of_a_whole_prompt(
    dtype: str, request: pytest.FixtureRequest
):
    case = request.getfixturevalue("llama" if dtype == "float32" else "half_llama")
    whole = case.run(MIXTURE)

    pieces: list[list[Tensor]] = [[] for _ in MIXTURE]
    start = 0
    for count in (1, 5, 1, 1, 9, 2, 5):
        parts = [(index, name, count) for index, name, _ in MIXTURE]
        for kept, logits in zip(pieces, case.run(parts, start), strict=True):
            kept.append(logits)
        start += count

    for (_, name, _), kept, wanted in zip(MIXTURE, pieces, whole, strict=True):
        assert torch.equal(torch.cat(kept), wanted), name


def test_a_step_without_adapters_costs_nothing(llama: Case):
    assert llama.adapters.store.for_step([(0, 3, None), (3, 1, None)], 4) is None
