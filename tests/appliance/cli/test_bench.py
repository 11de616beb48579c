import asyncio
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.bench import BenchPlan, run_bench
from appliance.cli.bench_client import BenchTarget, stream_events
from appliance.cli.bench_figures import Outcome, Sample, figures_of, quantile_ms
from appliance.cli.bench_load import make_prompt
from appliance.cli.data_plane import DataPlaneError
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


def sample(started_s: float, *chunks_s: float, **changes: Any) -> Sample:
    """A request that ended well, of a prompt of 10 tokens."""
    ended = {"ended_s": chunks_s[-1], "prompt_tokens": 10, "output_tokens": len(chunks_s)}
    return Sample(started_s=started_s, chunks_s=list(chunks_s), **(ended | changes))


def test_figures_are_sums_over_the_wall_time():
    samples = [sample(5.0, 5.1, 5.11, 5.14), sample(5.0, 5.3, 5.32, prompt_tokens=20)]
    unfinished = [sample(5.0, 6.0, ended_s=None, output_tokens=0) for _ in range(4)]
    failed = sample(5.0, 5.001, ended_s=None, failed=True)
    figures = figures_of(2, Outcome([*samples, *unfinished, failed], 5.0, 7.0, 7.0))

    assert (figures.output_tok_s, figures.total_tok_s) == (4.5, 4.5 + 6 * 15 / 2)
    assert (figures.prompt_tokens, figures.output_tokens) == (15.0, 2.5)
    assert figures.ttft_ms_p50 == pytest.approx(1000)
    assert figures.itl_ms_p99 == pytest.approx(30)
    assert figures.latency_ms_p50 == pytest.approx(140)
    assert (figures.requests, figures.failed, figures.unfinished) == (2, 1, 4)


def test_a_chunk_of_several_tokens_counts_as_so_many():
    figures = figures_of(1, Outcome([sample(0.0, 1.0, 2.0, output_tokens=8)], 0.0, 4.0, 4.0))

    assert figures.output_tok_s == 2.0


def test_the_ramp_is_left_out_of_all_figures():
    ramp = sample(0.0, 1.0, 5.0, 11.0, 12.0)
    counted = sample(10.5, 11.0, 11.5)
    figures = figures_of(2, Outcome([ramp, counted], 10.0, 20.0, 18.0), stagger_s=10.0)

    assert figures.ttft_ms_p95 == 500.0
    assert figures.itl_ms_p99 == 6000.0
    assert figures.output_tok_s == 0.4
    assert figures.total_tok_s == 1.4


def test_a_request_without_an_answer_counts_with_its_age_unless_it_is_very_young():
    starved, young = Sample(started_s=12.0), Sample(started_s=19.0)
    figures = figures_of(2, Outcome([starved, young], 10.0, 20.0, 18.0))

    assert (figures.ttft_ms_p50, figures.ttft_ms_p99) == (8000.0, 8000.0)


def test_a_staggered_load_starts_slot_by_slot_and_runs_on(run_dir: Path, capsys: Captured):
    plane = FakeDataPlane(serve_tokens)
    with plane.on_socket(run_dir / "data.sock") as path:
        asked = plan(concurrency=(2,), stagger_s=0.3)
        code = run_bench(BenchTarget(socket_path=path), asked, "json")

    out, err = capsys.readouterr()
    figures = json.loads(out)
    assert code == 0
    assert "quarterdeck:" not in err  # what was cut off at the end is no failure
    assert figures["requests"] > 3
    assert figures["stagger_s"] == 0.3
    assert 0.5 < figures["wall_s"] < 5
    assert figures["output_tok_s"] > 0


def test_rounds_repeat_all_concurrencies_with_other_prompts(run_dir: Path, capsys: Captured):
    plane = FakeDataPlane(serve_tokens)
    with plane.on_socket(run_dir / "data.sock") as path:
        run_bench(BenchTarget(socket_path=path), plan(rounds=2), "json")

    lines = [json.loads(line)["concurrency"] for line in capsys.readouterr().out.splitlines()]
    assert lines == [1, 4, 1, 4]
    assert len({body["prompt"] for body in plane.requests}) == len(plane.requests)


class RawServer:
    """Answers every connection with the same bytes, then closes it."""

    def __init__(self, *pieces: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pieces = pieces
        self.target = BenchTarget(url=f"http://127.0.0.1:{self._listener.getsockname()[1]}")
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                connection.recv(65536)
                for piece in self._pieces:
                    connection.sendall(piece)


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(*texts: str) -> bytes:
    return b"".join(f"{len(text):x}\r\n{text}\r\n".encode() for text in texts)


def events_of(target: BenchTarget) -> list[dict[str, Any]]:
    async def read() -> list[dict[str, Any]]:
        return [event async for event in stream_events(target, "/v1/completions", {})]

    return asyncio.run(read())


def test_events_are_read_whatever_the_chunks_of_the_transfer_cut():
    body = chunked('data: {"a', '": 1}\n\ndata: {"a": 2}', "\n\n: rest\n\ndata: [DO", "NE]\n\n")

    assert events_of(RawServer(HEAD, body, b"0\r\n\r\n").target) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1",
        b"no protocol\r\n\r\n",
        HEAD,
        HEAD + chunked('data: {"a": 1}\n\n') + b"5\r\nda",
        HEAD + chunked('data: {"a": 1}\n\n') + b"0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b'data: {"a": 1}\n\n',
    ],
)
def test_an_answer_that_is_not_whole_is_an_error(sent: bytes):
    with pytest.raises(DataPlaneError, match="broke off"):
        events_of(RawServer(sent).target)


def test_a_refusal_gives_the_servers_words():
    body = b'{"error": {"message": "too many"}}'
    with pytest.raises(DataPlaneError, match="429: too many"):
        events_of(RawServer(b"HTTP/1.1 429 Too Many\r\n\r\n" + body).target)


def test_a_port_where_nobody_listens_is_named():
    with pytest.raises(DataPlaneError, match=r"cannot reach http://127\.0\.0\.1:1: "):
        events_of(BenchTarget(url="http://127.0.0.1:1"))
