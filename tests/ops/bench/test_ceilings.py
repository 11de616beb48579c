"""The machine's limits are measured by a program of our own; shares of them are plain divisions."""

import pytest
from ceilings import (
    Ceiling,
    bandwidth_share,
    best_of,
    compute_share,
    lines_of,
    measure_ceilings,
    shares_of,
)

READ = Ceiling("read", 2, 30e9, 29e9)


def test_the_program_compiles_and_every_limit_is_positive_or_absent():
    ceilings = measure_ceilings([1], seconds=0.01)

    assert [each.kind for each in ceilings] == ["read", "int8", "bf16"]
    assert 1e8 < best_of(ceilings, "read") < 1e13
    assert all(each.best == 0 or each.best >= each.median > 1e9 for each in ceilings)


def test_shares_are_bytes_and_operations_per_token():
    assert bandwidth_share(96e6, itl_ms=4.0, read_bytes_s=30e9) == pytest.approx(0.8)
    assert compute_share(134.5e6, total_tok_s=1000, peak_ops_s=900e9) == pytest.approx(0.2989, 1e-3)


@pytest.mark.parametrize(
    ("facts", "kind"), [({"quantization": "w4"}, "int8"), ({"quantization": "none"}, "bf16")]
)
def test_many_streams_are_held_against_the_peak_of_their_format(facts: dict[str, str], kind: str):
    ceilings = [READ, Ceiling("int8", 2, 900e9, 1), Ceiling("bf16", 2, 450e9, 1)]
    cell = {"size": 8, "medians": {"total_tok_s": 1000.0}}

    ((name, share),) = shares_of(
        cell, {"weights_bytes": 1, "num_parameters": 100e6} | facts, ceilings
    )
    assert name == f"the {kind} peak"
    assert share == pytest.approx(200e9 / best_of(ceilings, kind))


def test_a_cpu_without_the_instructions_has_no_such_limit():
    ceilings = [READ, Ceiling("int8", 2, 0.0, 0.0)]
    cell = {"size": 8, "medians": {"total_tok_s": 1000.0}}

    assert "no int8 products here" in lines_of(ceilings)[1]
    assert shares_of(cell, {"weights_bytes": 1, "num_parameters": 1}, ceilings) == []
