import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.bench import BenchPlan, BenchTarget, make_prompt, run_bench
from appliance.cli.bench_figures import Sample, figures_of, quantile_ms
from tests.appliance.cli.fake_data_plane import FakeDataPlane, chunk, completion_lines

Captured = pytest.CaptureFixture[str]
LOAD_SCRIPT = Path(__file__).parents[3] / "ops" / "bench" / "load.py"


def serve_tokens(body: dict[str, Any]) -> list[str]:
    return completion_lines(body["max_tokens"])


def plan(**changes: Any) -> BenchPlan:
    return BenchPlan(**({"concurrency": (1, 4), "output_tokens": 6, "prompt_words": 3} | changes))


def test_each_concurrency_gives_a_line_of_figures(run_dir: Path, capsys: Captured):
    plane = FakeDataPlane(serve_tokens)
    with plane.on_socket(run_dir / "data.sock") as path:
        code = run_bench(BenchTarget(socket_path=path), plan(), "json")

    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert code == 0
    assert (first["concurrency"], first["requests"]) == (1, 3)
    assert (second["concurrency"], second["requests"]) == (4, 8)
    assert (second["output_tokens"], second["prompt_tokens"]) == (6.0, 5.0)
    assert second["output_tok_s"] > 0
    assert second["ttft_ms_p95"] >= second["ttft_ms_p50"] > 0


def test_requests_force_their_length_and_no_two_prompts_are_alike(run_dir: Path):
    plane = FakeDataPlane(serve_tokens)
    with plane.on_socket(run_dir / "data.sock") as path:
        run_bench(BenchTarget(socket_path=path), plan())

    prompts = [body.pop("prompt") for body in plane.requests]
    assert len(prompts) == 1 + 3 + 8
    assert len({prompt.split()[0] for prompt in prompts}) == len(prompts)
    assert plane.requests[-1] == {
        "model": "smollm2",
        "max_tokens": 6,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_the_slots_are_filled_and_never_exceeded(run_dir: Path):
    all_here = threading.Barrier(4)

    def answer(body: dict[str, Any]) -> list[str]:
        if body["prompt"] != "warm up":
            all_here.wait(10)
        return serve_tokens(body)

    plane = FakeDataPlane(answer)
    with plane.on_socket(run_dir / "data.sock") as path:
        assert run_bench(BenchTarget(socket_path=path), plan(concurrency=(4,))) == 0
    assert plane.most_at_once == 4


def test_a_run_stops_when_its_time_is_up(run_dir: Path, capsys: Captured):
    end = threading.Event()

    def answer(body: dict[str, Any]) -> list[str]:
        if body["prompt"] != "warm up":
            end.wait(10)
        return serve_tokens(body)

    with FakeDataPlane(answer).on_socket(run_dir / "data.sock") as path:
        asked = plan(concurrency=(2,), max_seconds=0.3)
        code = run_bench(BenchTarget(socket_path=path), asked, "json")
        end.set()

    out, err = capsys.readouterr()
    figures = json.loads(out)
    assert code == 1
    assert (figures["requests"], figures["unfinished"]) == (0, 2)
    assert "stopped after 0.3 s" in err


def test_a_server_that_never_answers_is_given_up(run_dir: Path, capsys: Captured):
    end = threading.Event()

    def answer(body: dict[str, Any]) -> list[str]:
        end.wait(10)
        return serve_tokens(body)

    with FakeDataPlane(answer).on_socket(run_dir / "data.sock") as path:
        code = run_bench(BenchTarget(socket_path=path), plan(max_seconds=0.2))
        end.set()

    assert code == 4
    assert "took too long" in capsys.readouterr().err


def test_failures_are_counted_and_said_once(run_dir: Path, capsys: Captured):
    def answer(body: dict[str, Any]) -> list[str]:
        is_bad = body["prompt"] != "warm up" and body["prompt"].split()[0].endswith("-1")
        error = 'data: {"error": {"message": "the engine restarted"}}'
        return [chunk({"text": "x"}), error] if is_bad else serve_tokens(body)

    with FakeDataPlane(answer).on_socket(run_dir / "data.sock") as path:
        code = run_bench(BenchTarget(socket_path=path), plan(concurrency=(2, 3)), "json")

    out, err = capsys.readouterr()
    assert code == 1
    assert [json.loads(line)["failed"] for line in out.splitlines()] == [1, 1]
    assert err.splitlines() == ["quarterdeck: the engine restarted"] * 2


def test_a_refused_key_is_told(run_dir: Path, capsys: Captured):
    plane = FakeDataPlane(serve_tokens, status=401, error={"message": "wrong key"})
    with plane.on_socket(run_dir / "data.sock") as path:
        assert run_bench(BenchTarget(socket_path=path), plan()) == 3
    assert "401: wrong key" in capsys.readouterr().err


def test_no_server_is_told(run_dir: Path, capsys: Captured):
    assert run_bench(BenchTarget(socket_path=run_dir / "absent.sock"), plan()) == 3
    assert "no server is running" in capsys.readouterr().err


def test_an_address_that_cannot_be_reached_is_named(capsys: Captured):
    assert run_bench(BenchTarget(url="http://127.0.0.1:1"), plan()) == 3
    assert "cannot reach http://127.0.0.1:1/v1/models: " in capsys.readouterr().err


def test_the_table_has_a_head_and_a_line_a_run(run_dir: Path, capsys: Captured):
    with FakeDataPlane(serve_tokens).on_socket(run_dir / "data.sock") as path:
        run_bench(BenchTarget(socket_path=path), plan())

    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["SLOTS", "REQUESTS", "FAILED"]
    assert [line.split()[:3] for line in lines] == [["1", "3", "0"], ["4", "8", "0"]]
    assert all(len(line) <= 100 for line in [head, *lines])


@pytest.mark.process
def test_the_script_loads_any_server_with_a_key_from_a_file(tmp_path: Path):
    (tmp_path / "key").write_text("sk-test\n")
    plane = FakeDataPlane(serve_tokens)
    options = ["--concurrency", "2", "--output-tokens", "4", "-o", "json"]
    with plane.on_port() as url:
        ran = subprocess.run(
            [
                *(sys.executable, str(LOAD_SCRIPT), "--url", f"{url}/"),
                *("--api-key-file", str(tmp_path / "key"), *options),
            ],
            capture_output=True,
            text=True,
            check=True,
            cwd=LOAD_SCRIPT.parents[2],
            env={"PYTHONPATH": str(LOAD_SCRIPT.parents[2])},
        )

    assert json.loads(ran.stdout)["output_tokens"] == 4.0
    assert set(plane.keys) == {"Bearer sk-test"}


def test_a_seed_makes_the_same_prompts_again():
    assert make_prompt("a-1", 20) == make_prompt("a-1", 20) != make_prompt("a-2", 20)
    assert len(make_prompt("a-1", 20).split()) == 21


def test_quantiles_are_values_that_were_measured():
    assert [quantile_ms([4.0, 1.0, 3.0, 2.0], share) for share in (0.5, 0.95, 0.0)] == [
        2000.0,
        4000.0,
        1000.0,
    ]
    assert quantile_ms([], 0.5) == 0.0


def test_figures_are_sums_over_the_wall_time():
    samples = [
        Sample(ttft_s=0.1, gaps_s=(0.01, 0.03), prompt_tokens=10, output_tokens=3),
        Sample(ttft_s=0.3, gaps_s=(0.02,), prompt_tokens=20, output_tokens=2),
    ]
    figures = figures_of(2, samples, (1, 4), wall_s=2.0)

    assert (figures.output_tok_s, figures.total_tok_s) == (2.5, 17.5)
    assert (figures.prompt_tokens, figures.output_tokens) == (15.0, 2.5)
    assert (figures.ttft_ms_p50, figures.itl_ms_p99) == (100.0, 30.0)
    assert (figures.failed, figures.unfinished) == (1, 4)
