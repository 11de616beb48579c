"""`ps`, `sleep`, `wake`, `restart` against a real control plane."""

import pytest

from tests.appliance.cli.conftest import Appliance, Run
from tests.appliance.cli.fake_data_plane import FakeDataPlane


def test_ps_lists_the_engines(run: Run, appliance: Appliance):
    result = run("ps")

    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].split()[:3] == ["ENGINE", "STATE", "MODEL"]
    assert [line.split()[0] for line in lines[1:]] == ["e0", "e1"]
    assert result.err == ""


def test_ps_in_json_is_the_list_of_rows(run: Run, appliance: Appliance):
    rows = run("ps", "-o", "json").json

    assert [(row["id"], row["state"], row["pid"]) for row in rows] == [
        ("e0", "ready", 7),
        ("e1", "ready", 7),
    ]


def test_ps_says_by_its_exit_code_that_an_engine_is_down(run: Run, appliance: Appliance):
    appliance.fleet.states["e1"] = "crash_loop"

    assert run("ps").code == 6


def test_sleep_waits_and_says_what_it_freed(run: Run, appliance: Appliance):
    appliance.fleet.is_slow = True
    appliance.fleet.done.set()

    result = run("sleep", "e0", "--level", "2", "--mode", "abort")

    assert (result.code, result.out) == (0, "e0: asleep, freed 5 B\n")
    assert appliance.fleet.log == [("sleep 2 abort", "e0", "local")]


def test_verbs_without_waiting_print_the_operation(run: Run, appliance: Appliance):
    appliance.fleet.is_slow = True

    result = run("wake", "e0", "--no-wait", "-o", "json")

    assert result.code == 0
    assert (result.json["id"], result.json["state"]) == ("op-0", "running")


def test_an_operation_that_takes_too_long_is_exit_code_4_and_names_it(
    run: Run, appliance: Appliance
):
    appliance.fleet.is_slow = True

    result = run("restart", "e0", "--timeout", "0.1")

    assert result.code == 4
    assert "op-0" in result.err
    assert result.out == ""


def test_a_conflict_is_exit_code_5_and_says_what_is_possible(run: Run, appliance: Appliance):
    appliance.fleet.states["e0"] = "crash_loop"

    result = run("wake", "e0")

    assert result.code == 5
    assert "e0 is in a crash loop" in result.err
    assert "Possible now: restart." in result.err


def test_with_several_engines_one_must_choose(run: Run, appliance: Appliance):
    assert run("sleep").code == 2
    assert run("sleep", "all").out.splitlines() == [
        "e0: asleep, freed 5 B",
        "e1: asleep, freed 5 B",
    ]
    del appliance.fleet.states["e1"]
    assert run("wake").out == "e0: awake\n"


@pytest.mark.parametrize("engine", ["e9", "../keys", "e0/../e1", "%2e%2e", "\x1b[2J", "."])
def test_a_name_that_is_no_engine_is_a_failure_and_reaches_nothing_else(
    run: Run, appliance: Appliance, engine: str
):
    result = run("sleep", engine)

    assert result.code == 1
    assert "\x1b" not in result.err
    assert all(state == "ready" for state in appliance.fleet.states.values())


def test_an_unknown_engine_comes_with_the_command_that_lists_them(run: Run, appliance: Appliance):
    result = run("wake", "e9")

    assert result.code == 1
    assert result.err.splitlines()[1] == "  `quarterdeck ps` lists the engines."


def test_over_tcp_a_key_is_needed(
    run: Run, appliance: Appliance, monkeypatch: pytest.MonkeyPatch, tmp_path
):
    key_file = tmp_path / "key"
    key_file.write_text("viewer-secret\n")

    assert run("ps", "--url", appliance.url).code == 3
    assert run("ps", "--url", appliance.url, "--api-key-file", key_file).code == 0
    denied = run("sleep", "e0", "--url", appliance.url, "--api-key-file", key_file)
    assert denied.code == 3
    assert "operator is needed" in denied.err
    monkeypatch.setenv("QUARTERDECK_ADMIN_KEY", "admin-secret")
    monkeypatch.setenv("QUARTERDECK_URL", appliance.url)
    assert run("sleep", "e0").code == 0
    assert appliance.fleet.log == [("sleep 1 wait", "e0", "k3")]


@pytest.mark.parametrize("url", ["127.0.0.1:8001", "ftp://127.0.0.1", "localhost"])
def test_an_address_without_http_is_a_usage_error_that_shows_one(run: Run, url: str):
    for command in ("ps", "top"):
        result = run(command, "--url", url)

        assert result.code == 2
        assert result.err == f"quarterdeck: --url {url}: give one such as http://127.0.0.1:8001\n"


def test_the_data_planes_address_is_recognised_as_the_wrong_one(run: Run):
    with FakeDataPlane(lambda _: []).on_port() as url:
        result = run("ps", "--url", url)

    assert result.code != 0
    assert "8001" in result.err


def test_nothing_running_is_exit_code_3(run: Run):
    result = run("ps")

    assert result.code == 3
    assert "no appliance is running in" in result.err
    assert run("ps", "--url", "http://127.0.0.1:9").code == 3
