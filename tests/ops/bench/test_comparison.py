"""The pure parts of `compare.py`: turns, prompts, loads, ratios, bounds, and the report."""

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from ceilings import Ceiling, lines_of_shares
from comparison.bounds import BEST_PEER, BEST_SERVER, BOUNDS, Bound, best, verdicts_of
from comparison.llama_bench import row_of
from comparison.machine import Noise, Watch, describe
from comparison.order import rotated, turns
from comparison.prompts import prompt_of
from comparison.results import Results, Spread
from comparison.scenarios import SCENARIOS, Cell, cells_of, takes_part
from comparison.subjects import OURS, SUBJECTS, chosen
from comparison.table import markdown

from appliance.cli.bench_figures import Outcome, Sample
from engine.text.tokenizer import Tokenizer

QUIET = Noise(others_cores=0.0, steal_share=0.0, load1=0.5)


def results(*rows: tuple[Cell, str, list[dict[str, float]]]) -> Results:
    """Rows of figures, one for each round."""
    found = Results(machine=describe(), took_s=60.0)
    for cell, subject, rounds in rows:
        for at, values in enumerate(rounds):
            found.add(cell, subject, at, values, QUIET)
    return found


def rates(*values: float) -> list[dict[str, float]]:
    return [{"output_tok_s": value} for value in values]


def test_each_subject_is_first_once_in_as_many_turns():
    orders = [rotated("abc", turn) for turn in range(6)]

    assert {order[0] for order in orders[:3]} == set("abc")
    assert all(sorted(order) == list("abc") for order in orders)
    assert orders[0] == ["a", "b", "c"]
    assert orders[1] == ["b", "a", "c"]
    assert rotated([], 3) == []


def test_what_is_compared_is_measured_back_to_back_in_every_round():
    plan = list(turns([("one", ["a", "b"]), ("two", ["a", "b", "c"])], 2))

    blocks = [(key, [s for *_, s in rows]) for key, rows in groupby(plan, lambda row: row[:2])]
    assert [key for key, _ in blocks] == [(0, "one"), (0, "two"), (1, "one"), (1, "two")]
    assert [sorted(subjects) for _, subjects in blocks] == [["a", "b"], ["a", "b", "c"]] * 2


def test_a_prompt_has_as_many_tokens_as_it_should(smollm2_path: Path):
    tokenizer = Tokenizer.load(smollm2_path)

    for num_tokens in (16, 101, 512, 4096):
        prompt = prompt_of(f"run-{num_tokens}", num_tokens)
        assert len(tokenizer.encode(prompt, add_special_tokens=False)) == num_tokens


def test_prompts_depend_on_the_seed_alone_and_share_no_beginning():
    prompts = [prompt_of(f"run-{index}", 101) for index in range(200)]

    assert prompt_of("run-7", 101) == prompts[7]
    assert len({prompt[:9] for prompt in prompts}) == 200


def test_every_load_is_bounded_and_has_the_size_of_its_cell():
    cells = cells_of(SCENARIOS, [1, 8, 16, 32])

    assert all(0 < cell.load.seconds <= 90 for cell in cells)
    loads = {cell.size: cell.load for cell in cells if cell.scenario == "throughput"}
    assert [(load.slots, load.requests) for load in loads.values()] == [
        (1, 3),
        (8, 16),
        (16, 32),
        (32, 32),
    ]
    prefill = [cell.load for cell in cells if cell.scenario == "prefill"]
    assert [(load.prompt_words, load.output_tokens) for load in prefill] == [(128, 1), (512, 1)]
    assert [cell.streams for cell in cells if cell.scenario == "context"] == [1, 1]


def test_slow_peers_are_left_out_where_they_cannot_be_best_unless_asked_for():
    cell, subject = Cell("throughput", 32), SUBJECTS["llama-q4_1"]

    assert not takes_part(subject, cell, everywhere=False)
    assert takes_part(subject, cell, everywhere=True)
    assert takes_part(subject, Cell("throughput", 1), everywhere=False)
    assert not takes_part(SUBJECTS["openvino"], Cell("staggered", 32), everywhere=True)


def test_a_subject_that_is_unknown_is_named():
    with pytest.raises(ValueError, match="unknown: vlmm; there are quarterdeck,"):
        chosen(["vllm", "vlmm"])


def sample(prompt_tokens: int, *chunks_s: float) -> Sample:
    return Sample(
        started_s=0.0,
        chunks_s=list(chunks_s),
        prompt_tokens=prompt_tokens,
        output_tokens=2 * len(chunks_s),
        ended_s=chunks_s[-1],
    )


def test_prefill_counts_prompt_tokens_and_decode_the_tokens_after_the_first_chunk():
    outcome = Outcome([sample(100, 0.5, 1.5, 2.5), sample(100, 0.25, 1.25)], 0.0, 4.0, 4.0)

    assert Cell("prefill", 100).values(outcome)["prefill_tok_s"] == pytest.approx(400)
    assert Cell("context", 100).values(outcome)["decode_tok_s"] == pytest.approx(2)


def test_ratios_are_of_the_same_round_so_that_a_slow_minute_slows_both():
    cell = Cell("throughput", 8)
    found = results((cell, OURS, rates(200, 20, 220)), (cell, "vllm", rates(100, 10, 100)))

    assert found.spread(cell, OURS, "output_tok_s") == Spread(200, 20, 220)
    assert found.ratio(cell, OURS, "vllm", "output_tok_s") == Spread(2.0, 2.0, 2.2)
    assert found.ratio(cell, OURS, "openvino", "output_tok_s") is None


def test_a_round_that_failed_is_in_no_ratio():
    cell = Cell("throughput", 8)
    found = results((cell, OURS, rates(200, 300)), (cell, "vllm", rates(100)))

    assert found.ratio(cell, OURS, "vllm", "output_tok_s") == Spread(2.0, 2.0, 2.0)


def test_the_best_server_is_none_that_runs_in_process():
    cell = Cell("throughput", 8)
    found = results(
        (cell, OURS, rates(500)),
        (cell, "vllm", rates(200)),
        (cell, "llama-q4_0", rates(250)),
        (cell, "openvino", rates(358)),
    )

    assert best(found, cell, "output_tok_s", BEST_SERVER, most=True) == "llama-q4_0"
    assert best(found, cell, "output_tok_s", BEST_PEER, most=True) == "openvino"
    assert best(found, cell, "output_tok_s", BEST_SERVER, most=False) == "vllm"
    assert best(found, Cell("ttft", 1), "ttft_ms_p50", BEST_PEER, most=False) is None


def test_bounds_hold_fail_or_were_not_measured():
    cell, ttft = Cell("throughput", 8), Cell("ttft", 1)
    found = results(
        (cell, OURS, rates(500)),
        (cell, "vllm", rates(200)),
        (cell, "openvino", rates(450)),
        (ttft, OURS, [{"ttft_ms_p50": 50.0}]),
        (ttft, "openvino", [{"ttft_ms_p50": 70.0}]),
        (ttft, "vllm", [{"ttft_ms_p50": 100.0}]),
    )

    verdicts = {each.bound.text(): each.passed for each in verdicts_of(found)}
    assert verdicts["throughput 8: quarterdeck output_tok_s ≥ 1.7 x best server"] is True
    assert verdicts["throughput 8: quarterdeck output_tok_s ≥ 1.3 x openvino"] is False
    assert verdicts["throughput 1: quarterdeck output_tok_s ≥ 1.6 x llama-q4_1"] is None
    assert verdicts["ttft 1: quarterdeck ttft_ms_p50 ≤ 0.6 x best peer"] is False
    assert len(verdicts) == len(BOUNDS)


def test_a_bound_can_compare_two_of_our_own_figures():
    bound = Bound(
        cell=Cell("context", 4096),
        figure="decode_tok_s",
        theirs=OURS,
        of_cell=Cell("context", 128),
        limit=0.5,
    )
    found = results(
        (Cell("context", 128), OURS, [{"decode_tok_s": 200.0}]),
        (Cell("context", 4096), OURS, [{"decode_tok_s": 90.0}]),
    )

    (verdict,) = verdicts_of(found, [bound])
    assert (verdict.ratio, verdict.passed) == (0.45, False)
    assert bound.text() == (
        "context 4096: quarterdeck decode_tok_s ≥ 0.5 x quarterdeck context 128"
    )


def test_noise_is_what_neither_the_server_nor_the_client_used():
    watch = Watch(lambda: 0.0)

    noise = watch.noise()
    assert noise.others_cores >= 0
    assert 0 <= noise.steal_share <= 1
    assert {"cpu", "cores", "date", "memory_gib"} <= describe().keys()


def all_scenarios() -> Results:
    values: dict[str, float] = {
        "output_tok_s": 240.0,
        "total_tok_s": 480.0,
        "ttft_ms_p50": 50.0,
        "ttft_ms_p95": 60.0,
        "itl_ms_p50": 4.0,
        "itl_ms_p99": 9.0,
        "prefill_tok_s": 2000.0,
        "decode_tok_s": 250.0,
    }
    found = results(
        *(
            (cell, name, [values, values])
            for cell in cells_of(SCENARIOS, [1, 32])
            for name in (OURS, "vllm", "openvino")
            if takes_part(SUBJECTS[name], cell, everywhere=False)
        )
    )
    found.facts = {OURS: {"weights_bytes": 96_400_000, "num_parameters": 134_500_000}}
    found.ceilings = [
        {"kind": "read", "threads": 2, "best": 30e9, "median": 29e9},
        {"kind": "int8", "threads": 2, "best": 900e9, "median": 890e9},
    ]
    found.llama_bench = [row_of("llama-q4_0", BENCH_ROW)]
    found.commands = {"vllm": "CACHE/vllm/bin/vllm serve CACHE/smollm2"}
    found.failures = ["vllm, throughput 32: it did not answer"]
    return found


BENCH_ROW = {"n_prompt": 128, "n_gen": 0, "avg_ts": 1001.4, "stddev_ts": 17.2}


def test_the_report_holds_every_scenario_and_what_failed():
    text = markdown(all_scenarios())

    for words in (
        "Output tokens per second",
        "Staggered arrivals, 32 streams",
        "Prefill, one stream",
        "Decode by context",
        "| llama-q4_0 | prefill 128 | 1001 ± 17 |",
        "30.0 GB/s read (median 29.0)",
        "quarterdeck, 1 streams: 80% of the read bandwidth",
        "it did not answer",
        "0 of 38 turns were not quiet",
    ):
        assert words in text
    assert all(line.count("|") == 0 or line.endswith("|") for line in text.splitlines())


def test_the_report_of_a_single_peer_needs_nothing_else():
    cell = Cell("throughput", 1)
    row: dict[str, float] = {"output_tok_s": 33.0, "ttft_ms_p50": 1.0, "itl_ms_p50": 1.0}

    text = markdown(results((cell, "vllm", [row])))
    assert "| vLLM, bf16 | 33.0 |" in text
    assert "## Bounds" not in text


def test_plain_values_of_the_results_give_the_shares_of_the_ceilings():
    found = all_scenarios()
    plain: dict[str, Any] = found.as_json()

    lines = lines_of_shares(plain, [Ceiling(**each) for each in found.ceilings])
    assert lines == [
        "quarterdeck, 1 streams: 80% of the read bandwidth",
        "quarterdeck, 32 streams: 14% of the int8 peak",
    ]
