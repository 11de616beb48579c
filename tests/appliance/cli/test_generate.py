"""`quarterdeck generate`: input, output, resuming, and Ctrl-C in the middle of the work."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.exits import CliError, Exit
from appliance.cli.generate_input import Defaults, InputFormat, Item, pending, read_items
from appliance.cli.generate_output import ResultFile

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-c", "from appliance.cli.main import main; main()", "generate"]
SMALL = ["--num-threads", "1", "--kv-cache-bytes", "8MiB", "--max-num-seqs", "16"]
DEFAULTS = Defaults(sampling={"max_tokens": 8}, model="tiny")


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def items_of(path: Path, text: str, **changes: Any) -> list[Item]:
    defaults = Defaults(**{"sampling": {"max_tokens": 8}, "model": "tiny", **changes})
    return read_items(write(path, text), InputFormat.AUTO, defaults)


# ---------------------------------------------------------------- input


def test_each_line_of_text_is_a_prompt_and_blank_lines_do_not_count(tmp_path: Path):
    items = items_of(tmp_path / "in.txt", "\ufefffirst\r\n\n  \nsecond")

    assert [(item.id, item.prompt) for item in items] == [
        (0, {"prompt": "first"}),
        (1, {"prompt": "second"}),
    ]


def test_a_json_line_may_have_an_id_and_sampling_of_its_own(tmp_path: Path):
    lines = [
        {"prompt": "a", "id": "x", "temperature": 0, "stop": ["\n"]},
        {"messages": [{"role": "user", "content": "b"}], "max_tokens": 3},
        {"prompt_token_ids": [1, 2], "structured_outputs": {"choice": ["yes", "no"]}},
    ]
    items = items_of(tmp_path / "in.jsonl", "\n".join(map(json.dumps, lines)), system="Be brief.")

    assert [item.id for item in items] == ["x", 1, 2]
    assert [item.params.max_tokens for item in items] == [8, 3, 8]
    assert items[0].params.stops == ("\n",)
    assert items[1].prompt["messages"][0] == {"role": "system", "content": "Be brief."}
    assert items[2].params.grammar() is not None


def test_text_can_be_a_users_message(tmp_path: Path):
    (item,) = items_of(tmp_path / "in.txt", "hello", chat=True)

    assert item.prompt == {"messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not JSON"),
        ("[1]", "not an object"),
        ("{}", "needs one of"),
        ('{"prompt": "a", "messages": []}', "needs one of"),
        ('{"prompt": "a", "id": 1.5}', "id must be"),
        ('{"prompt": "a", "temprature": 1}', "unknown field"),
        ('{"prompt": "a", "max_tokens": "many"}', "max_tokens"),
        ('{"prompt": "a", "n": 0}', "n must be"),
        ('{"prompt": "a", "structured_outputs": {}}', "need one of json"),
        ('{"prompt": "a", "id": "same"}', "is that of line 1"),
    ],
)
def test_a_wrong_line_is_named_before_anything_is_computed(
    tmp_path: Path, line: str, complaint: str
):
    with pytest.raises(CliError, match="line 2: .*" + complaint) as refused:
        items_of(tmp_path / "in.jsonl", '{"prompt": "a", "id": "same"}\n' + line)

    assert refused.value.code is Exit.USAGE


def test_a_changed_prompt_model_or_option_is_noticed(tmp_path: Path):
    path = tmp_path / "in.txt"
    done = {item.id: item.content_hash for item in items_of(path, "a\nb")}

    assert list(pending(items_of(path, "a\nb\nc"), done)) == items_of(path, "a\nb\nc")[2:]
    for changed in (
        items_of(path, "a\nB"),
        items_of(path, "a\nb", model="other"),
        items_of(path, "a\nb", sampling={"max_tokens": 9}),
        items_of(path, "0\na\nb"),
    ):
        with pytest.raises(CliError, match="another prompt, model or other options") as refused:
            list(pending(changed, done))
        assert refused.value.code is Exit.CONFLICT


# ---------------------------------------------------------------- output


def result(id_: int | str, **more: Any) -> dict[str, Any]:
    return {"id": id_, "index": 0, "hash": f"h{id_}", "text": "\u00e9\ud800", **more}


def test_results_are_known_to_the_next_run_and_a_half_line_is_cut_off(tmp_path: Path):
    path = tmp_path / "out.jsonl"
    with ResultFile(path) as output:
        output.write(result(1))
        output.write(result("two", error="no"))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"id": 3, "hash": "h3", "te')

    with ResultFile(path) as output:
        assert output.done == {1: "h1", "two": "htwo"}
        assert output.num_failed == 1
        output.write(result(3))

    assert path.read_bytes().startswith(whole)
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == [1, "two", 3]


def test_a_half_line_alone_is_cut_off_and_longer_than_a_read(tmp_path: Path):
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"{" + b"x" * 200_000)

    with ResultFile(path) as output:
        assert output.done == {}

    assert path.read_bytes() == b""


def test_failed_prompts_can_be_forgotten(tmp_path: Path):
    path = tmp_path / "out.jsonl"
    with ResultFile(path) as output:
        for k in range(6):
            output.write(result(k, **({"error": "no"} if k % 2 else {})))

    with ResultFile(path, retry_errors=True) as output:
        assert list(output.done) == [0, 2, 4]
        assert output.num_failed == 0

    assert len(path.read_text().splitlines()) == 3


def test_two_runs_do_not_share_an_output_and_other_files_are_left_alone(tmp_path: Path):
    with (
        ResultFile(tmp_path / "out.jsonl"),
        pytest.raises(CliError, match="another run writes"),
    ):
        ResultFile(tmp_path / "out.jsonl")

    path = tmp_path / "notes.txt"
    path.write_text("my notes\n")
    with pytest.raises(CliError, match="line 1 is no result"):
        ResultFile(path)
    assert path.read_text() == "my notes\n"


# ---------------------------------------------------------------- the whole


def start(arguments: list[str], **options: Any) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
        **options,
    )


def run(arguments: list[str], text: str | None = None) -> tuple[int, str, str]:
    stdin = subprocess.PIPE if text is not None else None
    with start(arguments, stdin=stdin) as process:
        out, err = process.communicate(text, timeout=60)
        return process.returncode, out, err


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def interrupt_after(arguments: list[str], output: Path, lines: int) -> tuple[int, str]:
    """Ctrl-C once the output has that many lines."""
    with start(arguments) as process:
        while num_lines(output) < lines and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        return process.returncode, err


@pytest.mark.process
def test_five_hundred_prompts_survive_two_interrupts_and_none_is_done_twice(
    tmp_path: Path, tiny_model_path: Path
):
    prompts, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(
        prompts,
        "\n".join(json.dumps({"id": f"p{k}", "prompt": f"Prompt number {k}"}) for k in range(500)),
    )
    arguments = [str(tiny_model_path), "--input", str(prompts), "--output", str(output)]
    arguments += ["--max-tokens", "12", "--seed", "7", *SMALL]

    for wanted in (100, 250):
        code, err = interrupt_after(arguments, output, wanted)
        assert code == Exit.INTERRUPTED
        assert "Run the same command again to go on." in err
        assert wanted <= num_lines(output) < 500
        interrupted = output.read_bytes()
    code, _, err = run(arguments)

    assert code == 0, err
    assert "are done already" in err
    assert output.read_bytes().startswith(interrupted)
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert Counter(record["id"] for record in records) == Counter(f"p{k}" for k in range(500))
    assert all(record["completion_tokens"] for record in records)


@pytest.mark.process
def test_prompts_come_from_standard_input_and_bad_ones_do_not_hurt_the_others(
    tiny_model_path: Path,
):
    lines = [
        {"prompt": "fine", "id": "a"},
        {"prompt": "long " * 2000, "id": "b"},
        {"messages": [{"role": "nobody", "content": "x"}], "id": "c"},
        {"prompt": "fine", "id": "d", "structured_outputs": {"regex": "[ab]{3}"}},
        {"prompt": "fine", "id": "e", "structured_outputs": {"regex": "("}},
    ]
    code, out, err = run(
        [str(tiny_model_path), "--max-tokens", "8", *SMALL], "\n".join(map(json.dumps, lines))
    )

    records = {record["id"]: record for record in map(json.loads, out.splitlines())}
    assert code == 1, err
    assert "3 prompts failed" in err, records
    assert set(records) == set("abcde")
    assert records["a"]["finish_reason"]
    assert set(records["d"]["text"]) <= {"a", "b"}
    assert "tokens" in records["b"]["error"]
    assert "role" in records["c"]["error"]
    assert "invalid_grammar" in records["e"]["error"]


@pytest.mark.process
def test_a_model_that_does_not_exist_is_a_failure_with_a_reason(tmp_path: Path):
    path = write(tmp_path / "in.txt", "a")
    code, _, err = run(["./no-such-model", "--input", path])

    assert code == 1
    assert "no-such-model" in err
