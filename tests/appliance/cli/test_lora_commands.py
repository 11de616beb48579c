"""`lora load|unload|list|pin|unpin` against a real control plane."""

import pytest

from tests.appliance.cli.conftest import Appliance, Run


def load(run: Run, name: str = "sql", *options: str):
    return run("lora", "load", name, "/adapters/sql", *options)


def test_load_waits_and_says_where_it_is(run: Run, appliance: Appliance):
    appliance.fleet.is_slow = True
    appliance.fleet.done.set()

    result = load(run)

    assert (result.code, result.out) == (0, "sql: loaded on e0, e1, rank 8\n")
    assert appliance.fleet.log == [("load /adapters/sql None", "sql", "local")]


def test_a_relative_path_is_made_absolute(run: Run, appliance: Appliance, tmp_path):
    result = run("lora", "load", "sql", "adapters/x", "--pin")

    assert result.code == 2, "the appliance has another root"
    assert appliance.fleet.log == [(f"load {tmp_path}/adapters/x True", "sql", "local")]


def test_a_refused_path_is_exit_code_2_with_what_to_do(run: Run, appliance: Appliance):
    result = run("lora", "load", "sql", "/etc")

    assert (result.code, result.out) == (2, "")
    assert result.err.splitlines() == ["quarterdeck: no such directory", "  Give another."]


def test_a_load_that_an_engine_refuses_is_exit_code_1_with_its_reason(
    run: Run, appliance: Appliance
):
    fleet = appliance.fleet
    fleet.is_slow = True
    finish = fleet.finish
    fleet.finish = lambda operation_id: finish(operation_id, "e1 refuses: rank 256")
    fleet.done.set()

    result = load(run)

    assert result.code == 1
    assert "e1 refuses: rank 256" in result.err


def test_list_is_a_table_or_json(run: Run, appliance: Appliance):
    load(run, "sql", "--pin", "--model", "m")
    table = run("lora", "list")
    rows = run("lora", "list", "-o", "json").json

    assert table.code == 0
    header, line = table.out.splitlines()
    assert header.split() == [
        "ADAPTER", "STATE", "MODEL", "RANK", "SIZE", "PIN", "RUN", "ENGINES", "CONTENT",
    ]  # fmt: skip
    assert line.split()[:6] == ["sql", "loaded", "m", "8", "2", "kB"]
    assert "e0,e1" in line
    assert [(row["name"], row["pinned"], row["rank"]) for row in rows] == [("sql", True, 8)]


def test_an_error_of_an_engine_is_said_beside_the_table(run: Run, appliance: Appliance):
    load(run)
    [row] = appliance.fleet.loaded.values()
    row.engines[1].state, row.engines[1].error = "error", "\x1b[2Jits files have changed"

    result = run("lora", "list")

    assert "\x1b" not in result.err
    assert "sql: not on e1:" in result.err
    assert "its files have changed" in result.err


def test_pin_unpin_and_unload(run: Run, appliance: Appliance):
    load(run)

    assert run("lora", "pin", "sql").out == "sql: pinned\n"
    assert appliance.fleet.loaded["sql"].pinned
    assert run("lora", "unpin", "sql").out == "sql: unpinned\n"
    assert run("lora", "unload", "sql").out == "sql: unloaded\n"
    assert appliance.fleet.loaded == {}


def test_without_waiting_the_operation_is_printed(run: Run, appliance: Appliance):
    appliance.fleet.is_slow = True
    result = load(run, "sql", "--no-wait", "-o", "json")

    assert (result.code, result.json["state"], result.json["kind"]) == (0, "running", "lora.load")


@pytest.mark.parametrize("verb", ["unload", "pin", "unpin"])
def test_an_unknown_adapter_comes_with_the_command_that_lists_them(
    run: Run, appliance: Appliance, verb: str
):
    result = run("lora", verb, "../engines/e0")

    assert result.code == 1
    assert all(state == "ready" for state in appliance.fleet.states.values())
    result = run("lora", verb, "none")
    assert result.err.splitlines()[1] == "  `quarterdeck lora list` lists the adapters."


def test_ps_says_why_an_engine_computes_in_another_type(run: Run, appliance: Appliance):
    appliance.fleet.dtype_reason = "the device has no bfloat16"
    result = run("ps")

    assert result.code == 0
    assert "e0: computes in float32: the device has no bfloat16" in result.err
