"""`config show`, `doctor`, `version`, `serve` up to its settings, and what all commands share."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from appliance.cli.hidden_arguments import forget_environment
from appliance.cli.output import printable, size
from appliance.cli.serve_command import run as run_serve
from appliance.cli.serve_command import serve
from appliance.config.errors import ConfigError
from appliance.config.settings import Settings
from appliance.config.values import BYTE_KEYS, parse_size
from tests.appliance.cli.conftest import Appliance, Run


def test_config_show_names_the_source_of_each_value(run: Run, tmp_path: Path, monkeypatch):
    (tmp_path / "quarterdeck.toml").write_text("port = 9000\n")
    monkeypatch.setenv("QUARTERDECK_GATEWAYS", "2")

    shown = run("config", "show", "--sources", "-o", "json").json

    assert shown["port"] == {"value": 9000, "source": f"{tmp_path / 'quarterdeck.toml'}: port"}
    assert shown["gateways"] == {"value": 2, "source": "QUARTERDECK_GATEWAYS"}
    assert shown["device"] == {"value": "cpu", "source": "default"}
    assert "QUARTERDECK_GATEWAYS" in run("config", "show", "--sources").out


def test_config_show_gives_each_engine_a_line_with_what_its_table_sets(run: Run, tmp_path: Path):
    tables = '[[engines]]\nmodel = "smollm2"\n[[engines]]\nmodel = "/m.gguf"\ndtype = "float32"\n'
    (tmp_path / "quarterdeck.toml").write_text(tables)

    lines = [line for line in run("config", "show").out.splitlines() if line.startswith("engines")]

    assert [line.split(maxsplit=1)[1] for line in lines] == [
        '{"model": "smollm2"}',
        '{"model": "/m.gguf", "dtype": "float32"}',
    ]


def test_doctor_looks_at_the_model_and_device_of_each_engine(run: Run, tmp_path: Path):
    tables = '[[engines]]\nmodel = "/absent.gguf"\n[[engines]]\nmodel = "."\ndevice = "cuda:7"\n'
    (tmp_path / "quarterdeck.toml").write_text(tables)

    told = [finding["text"] for finding in run("doctor", "-o", "json").json]

    assert "/absent.gguf: no such path" in told
    assert any(text.startswith("cuda:7: ") for text in told)
    assert not any("smollm2" in text for text in told)


def test_config_show_hides_keys(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("QUARTERDECK_API_KEY", "sk-CANARY")

    for output in ("table", "json"):
        result = run("config", "show", "--sources", "-o", output)
        assert result.code == 0
        assert "CANARY" not in result.out + result.err


def test_a_configuration_error_is_exit_code_2_with_a_hint(run: Run, tmp_path: Path):
    (tmp_path / "quarterdeck.toml").write_text("prot = 9000\n")

    result = run("config", "show")

    assert result.code == 2
    assert result.err.splitlines() == [
        f"quarterdeck: {tmp_path / 'quarterdeck.toml'}: prot: unknown setting",
        "  Did you mean port?",
    ]


def test_doctor_finds_a_port_that_is_taken(run: Run, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("QUARTERDECK_MODEL", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        monkeypatch.setenv("QUARTERDECK_PORT", str(port))

        result = run("doctor", "-o", "json")

    findings = {finding["check"]: finding for finding in result.json}
    assert result.code == 6
    assert findings[f"port {port}"]["verdict"] == "warning"
    assert findings["torch"]["verdict"] == "ok"
    assert "unproven on CUDA" in findings["device"]["text"]


def test_doctor_warns_of_a_model_that_is_not_pulled(run: Run, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("QUARTERDECK_MODEL_DIR", str(tmp_path / "models"))

    result = run("doctor")

    assert result.code == 6
    assert "quarterdeck models pull smollm2" in result.out


def test_doctor_sees_the_running_appliance(run: Run, appliance: Appliance, tmp_path: Path):
    findings = {finding["check"]: finding["text"] for finding in run("doctor", "-o", "json").json}

    assert findings["appliance"].startswith(f"running, process {os.getpid()}")
    assert not any(check.startswith("port ") for check in findings)


def test_version_is_printed(run: Run):
    assert run("--version").out == run("version").out
    assert set(run("version", "-o", "json").json) == {"version"}


@pytest.mark.parametrize("arguments", [["nope"], ["ps", "--nope"], ["serve", "--port", "x"]])
def test_usage_errors_are_exit_code_2(run: Run, arguments: list[str]):
    assert run(*arguments).code == 2


def test_serve_refuses_bad_flags_before_anything_starts():
    with pytest.raises(ConfigError, match="--dtype = 'int8'"):
        run_serve({"dtype": "int8", "api_key": [], "port": None})


def test_children_do_not_inherit_keys():
    environ = {"QUARTERDECK_API_KEY": "a", "QUARTERDECK_ADMIN_KEY": "b", "PATH": "/bin"}

    forget_environment(environ)

    assert environ == {"PATH": "/bin"}


@pytest.mark.process
def test_keys_in_flags_vanish_from_the_process_list():
    script = (
        "import sys\n"
        "from appliance.cli.hidden_arguments import hide\n"
        "assert hide(sys.argv[2:])\n"
        "print(open('/proc/self/cmdline').read())\n"
    )
    arguments = ["--api-key=sk-CANARY-1", "sk-CANARY-1", "sk-CANARY-2"]

    shown = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
    ).stdout

    assert "CANARY" not in shown
    assert "--api-key=***********" in shown


def test_text_of_others_cannot_drive_the_terminal():
    hostile = "a\x1b]52;c;eA==\x07b\r\nc\x9b6nd\u202ee\u200bf\x00"

    assert printable(hostile) == "a�]52;c;eA==�b��c�6nd�e�f�"
    assert printable("naïve 模型 ✓") == "naïve 模型 ✓"


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (380_400_000, "380 MB"), (2_500_000_000, "2.5 GB")],
)
def test_sizes_are_short(num_bytes: int | None, text: str):
    assert size(num_bytes) == text


def test_instance_files_of_another_directory_are_found_by_the_flag(
    run: Run, appliance: Appliance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("QUARTERDECK_STATE_DIR")

    assert json.loads(run("ps", "--state-dir", tmp_path / "state", "-o", "json").out)


@pytest.mark.parametrize("arguments", [["top"], ["chat", "hello"], ["bench"]])
def test_commands_for_a_running_appliance_say_that_none_runs(run: Run, arguments: list[str]):
    result = run(*arguments)

    assert result.code == 3
    assert "no appliance is running in" in result.err


def test_top_needs_a_terminal(run: Run, appliance: Appliance):
    result = run("top")

    assert (result.code, result.out) == (2, "")
    assert "top needs a terminal" in result.err


def _as_told(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_the_defaults_that_serve_names_in_its_help_are_those_of_the_settings():
    told: dict[str, str] = {}
    for name, hint in get_type_hints(serve, include_extras=True).items():
        help_text = getattr(next(iter(getattr(hint, "__metadata__", ())), None), "help", None)
        if found := re.search(r"\[default: (.+)\]", help_text or ""):
            told[name] = found[1]

    fields = {"engines": "num_engines"}
    settings = Settings()
    held = {name: getattr(settings, fields.get(name, name)) for name in told}
    assert held.pop("dtype") is None
    assert told.pop("dtype") == "auto"
    sizes = {name: parse_size(told.pop(name)) for name in BYTE_KEYS & told.keys()}
    assert sizes == {name: held.pop(name) for name in sizes}
    assert told == {name: _as_told(value) for name, value in held.items()}


@pytest.mark.parametrize(
    "url", ["localhost:8000", "http://127.0.0.1:99999", "http://[::1", "http://", "ftp://h:1"]
)
def test_bench_sends_nothing_to_what_is_no_url_of_a_server(run: Run, url: str):
    result = run("bench", "--base-url", url, "--model", "m")

    assert (result.code, "--base-url" in result.err) == (2, True)


def test_bench_says_so_when_a_server_cannot_have_that_name(run: Run):
    result = run("bench", "--base-url", "http://a..b", "--model", "m")

    assert (result.code, "cannot reach http://a..b" in result.err) == (3, True)


def test_chat_and_bench_go_to_the_data_planes_socket(run: Run, appliance: Appliance):
    for arguments in (["chat", "hello"], ["bench", "--concurrency", "1"]):
        assert run(*arguments).code == 3  # nobody listens on it here
    assert run("bench", "--concurrency", "many").code == 2


def test_model_packs_are_listed_and_unknown_ones_refused(run: Run, tmp_path: Path):
    listed = run("models", "list", "--model-dir", tmp_path, "-o", "json").json

    assert [row["name"] for row in listed["items"]] == ["smollm2", "gemma3-270m"]
    assert run("models", "pull", "nope", "--model-dir", tmp_path).code == 2
