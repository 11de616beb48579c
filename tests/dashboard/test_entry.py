import subprocess
import sys

import pytest

from dashboard.__main__ import is_remote, prepare_environment, run

PURE = ("dashboard.__main__", "dashboard.client.api", "dashboard.store.state", "dashboard.verbs")


def test_without_an_instance_it_says_so(capsys):
    assert run(None, None, None) == 2
    assert "--demo" in capsys.readouterr().err


def test_nothing_moves_by_itself_unless_the_user_wants_it():
    environment = {"TEXTUAL_ANIMATIONS": "full"}
    prepare_environment(environment)

    assert environment["TEXTUAL_ANIMATIONS"] == "full"
    assert environment["TEXTUAL_SMOOTH_SCROLL"] == "0"


def test_a_line_over_ssh_is_noticed():
    assert is_remote({"SSH_CONNECTION": "10.0.0.4 5 10.0.0.5 22"})
    assert not is_remote({"TERM": "xterm"})


@pytest.mark.process
def test_what_is_behind_the_screens_imports_no_textual_and_no_engine():
    check = (
        f"import sys, {', '.join(PURE)}\n"
        "sys.exit(' '.join(name for name in ('textual', 'torch', 'engine', 'zmq') "
        "if name in sys.modules) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
