"""`ps` says what computes and how weights and keys are kept, and shows one engine in full."""

import pytest

from appliance.supervisor.start_progress import describe
from tests.appliance.cli.conftest import Appliance, Run
from tests.dashboard.samples import an_engine

FAST = {
    "dtype": "bfloat16",
    "kernel_backend": "cpu",
    "kernel_path": "avx512-bf16",
    "kernel_reason": "the best that this machine runs",
    "quantization": "w4",
    "quantization_reason": "as the file holds them",
    "kv_cache_dtype": "int8",
    "weight_cache": "hit",
    "num_threads": 2,
}
SLOW = {
    "dtype": "bfloat16",
    "kernel_backend": "reference",
    "kernel_path": "torch",
    "kernel_reason": "the CPU kernels were not built",
    "quantization": "none",
}


@pytest.fixture
def fleet(appliance: Appliance, monkeypatch: pytest.MonkeyPatch) -> Appliance:
    """One engine on the CPU kernels, one on the reference."""
    rows = [an_engine("e0", **FAST), an_engine("e1", **SLOW)]
    monkeypatch.setattr(appliance.fleet, "engines", lambda: rows)
    return appliance


def test_the_list_says_how_weights_are_kept_and_what_computes(run: Run, fleet: Appliance):
    result = run("ps")
    header, first, second = result.out.splitlines()

    assert header.split()[4:6] == ["WEIGHTS", "KERNELS"]
    assert first.split()[4:6] == ["w4", "avx512-bf16"]
    assert second.split()[4:6] == ["bfloat16", "torch"]
    assert result.err.splitlines() == [
        "e1: runs on the slower reference kernels: the CPU kernels were not built"
    ]


def test_one_engine_is_shown_with_all_reasons(run: Run, fleet: Appliance):
    facts = dict(line.split("  ", 1) for line in run("ps", "e0").out.splitlines())
    facts = {name: value.strip() for name, value in facts.items()}

    assert facts["kernels"] == "avx512-bf16: the best that this machine runs"
    assert facts["weights"] == "w4: as the file holds them"
    assert facts["KV cache in"] == "int8"
    assert facts["weight cache"] == "hit"
    assert facts["device"] == "cpu, 2 threads"


def test_one_engine_in_json_is_its_row(run: Run, fleet: Appliance):
    row = run("ps", "e0", "-o", "json").json

    assert {name: row[name] for name in FAST} == FAST


def test_an_engine_that_is_not_there_is_a_usage_error(run: Run, fleet: Appliance):
    result = run("ps", "e7")

    assert result.code == 2
    assert "there is no engine e7" in result.err


def test_a_start_on_the_slower_kernels_says_so_and_why():
    assert describe(an_engine("e1", **SLOW)) == (
        "e1: ready on the slower reference kernels (the CPU kernels were not built)"
    )
    assert describe(an_engine("e0", **FAST)) == "e0: ready"
