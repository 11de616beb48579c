"""`quarterdeck generate`: input, output, resuming, and Ctrl-C in the middle of the work."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.exits import CliError, Exit
from appliance.cli.generate_input import Defaults, InputFormat, Item, pending, read_items
from appliance.cli.generate_output import ResultFile, open_output

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


def test_a_half_line_alone_is_cut_off_however_long(tmp_path: Path):
    path = tmp_path / "out.jsonl"
    path.write_bytes(b'{"id": ' + b"1" * 200_000)

    with ResultFile(path) as output:
        assert output.done == {}

    assert path.read_bytes() == b""


def test_failed_prompts_can_be_forgotten(tmp_path: Path):
    path = tmp_path / "out.jsonl"
    with ResultFile(path) as output:
        for k in range(6):
            output.write(result(k, **({"error": "no"} if k % 2 else {})))

    path.chmod(0o600)
    with ResultFile(path, retry_errors=True) as output:
        assert list(output.done) == [0, 2, 4]
        assert output.num_failed == 0
        output.write(result(7))
        with pytest.raises(CliError, match="another run writes"):
            ResultFile(path)

    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == [0, 2, 4, 7]
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_two_runs_do_not_share_an_output(tmp_path: Path):
    with (
        ResultFile(tmp_path / "out.jsonl"),
        pytest.raises(CliError, match="another run writes"),
    ):
        ResultFile(tmp_path / "out.jsonl")


OTHERS = ["notes\n", "notes", '{"id": 1, "hash": "h"}\nnotes', '{"id": [1], "hash": 2}\n', "[1]"]


@pytest.mark.parametrize("text", OTHERS)
@pytest.mark.parametrize("retry_errors", [False, True])
def test_a_file_with_anything_else_is_refused_and_left_as_it_is(
    tmp_path: Path, text: str, retry_errors: bool
):
    path = tmp_path / "notes.txt"
    path.write_text(text)

    with pytest.raises(CliError, match="is no result"):
        ResultFile(path, retry_errors=retry_errors)
    assert path.read_text() == text


def test_a_pipe_and_a_device_are_written_like_standard_output(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with open_output(str(pipe), restart=False, retry_errors=False) as output:
        output.write(result(1))
        assert json.loads(os.read(reader, 4096)) == result(1)
        os.close(reader)
        with pytest.raises(CliError, match="nobody reads"):
            output.write(result(2))
    with (
        open_output("/dev/full", restart=False, retry_errors=False) as output,
        pytest.raises(CliError, match="cannot write /dev/full: No space left"),
    ):
        output.write(result(1))


# ---------------------------------------------------------------- the whole


def start(
    arguments: list[str], tmp_dir: Path | None = None, **options: Any
) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment |= {"TMPDIR": str(tmp_dir)} if tmp_dir else {}
    return subprocess.Popen(
        # jobs in the background of a script ignore Ctrl-C, and what they start does too
        ["env", "--default-signal=INT", *COMMAND, *arguments],
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


def stop_after(
    arguments: list[str], output: Path, lines: int, number: int, tmp_dir: Path
) -> tuple[int, str]:
    """Send a signal once the output has that many lines."""
    with start(arguments, tmp_dir) as process:
        while num_lines(output) < lines and process.poll() is None:
            time.sleep(0.005)
        assert list(tmp_dir.iterdir()), "the engine's sockets"
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
        return process.returncode, err


@pytest.fixture
def short_tmp_dir() -> Iterator[Path]:
    """Where sockets can be: their paths may not be long."""
    with tempfile.TemporaryDirectory(prefix="qd-test-", dir="/tmp") as path:
        yield Path(path)


@pytest.mark.process
def test_five_hundred_prompts_survive_two_interrupts_and_none_is_done_twice(
    tmp_path: Path, short_tmp_dir: Path, tiny_model_path: Path
):
    prompts, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(
        prompts,
        "\n".join(json.dumps({"id": f"p{k}", "prompt": f"Prompt number {k}"}) for k in range(500)),
    )
    arguments = [str(tiny_model_path), "--input", str(prompts), "--output", str(output)]
    arguments += ["--max-tokens", "8", "--seed", "7", *SMALL]

    for wanted, number in ((100, signal.SIGINT), (250, signal.SIGTERM)):
        code, err = stop_after(arguments, output, wanted, number, short_tmp_dir)
        assert code == 128 + number
        assert "Run the same command again to go on." in err
        assert wanted <= num_lines(output) < 500
        assert list(short_tmp_dir.iterdir()) == []
        interrupted = output.read_bytes()
    code, _, err = run(arguments)

    assert code == 0, err
    assert "are done already" in err
    assert "\u2588" not in err, "no bar where there is no terminal"
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
def test_the_input_is_never_the_output(tmp_path: Path, tiny_model_path: Path):
    path = write(tmp_path / "in.txt", "a")
    code, _, err = run([str(tiny_model_path), "--input", path, "--output", path, "--restart"])

    assert code == Exit.USAGE
    assert "is the input" in err
    assert Path(path).read_text() == "a"


@pytest.mark.process
def test_a_model_that_does_not_exist_is_a_failure_with_a_reason(tmp_path: Path):
    path = write(tmp_path / "in.txt", "a")
    code, _, err = run(["./no-such-model", "--input", path])

    assert code == 1
    assert "no-such-model" in err
