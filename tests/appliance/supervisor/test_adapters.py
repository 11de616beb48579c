"""LoRA adapters over real fake engines: all or none, replayed, caught up with, never mixed up."""

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest

from appliance.supervisor import adapter_control, adapter_sync
from appliance.supervisor.admin.ports import ConflictError, NotFoundError, RefusedError
from appliance.supervisor.admin.schemas import AdapterRow, LoadAdapterBody, Operation, SleepBody
from tests.appliance.supervisor.adapter_dirs import make_dir
from tests.appliance.supervisor.appliance_under_test import Appliance, appliance

pytestmark = [pytest.mark.anyio, pytest.mark.process]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "adapters"


async def load(it: Appliance, name: str, path: Path, pinned: bool | None = None) -> Operation:
    body = LoadAdapterBody(path=str(path), pinned=pinned)
    begun = await it.supervisor.load_adapter(name, body, "key-1")
    return await it.supervisor.operation(begun.id, 20.0)


def states(row: AdapterRow) -> list[str]:
    return [each.state for each in row.engines]


def is_loaded_everywhere(row: AdapterRow) -> bool:
    return set(states(row)) == {"loaded"}


def usable(it: Appliance) -> list[tuple[str, ...]]:
    return [it.fleet.adapters.usable(engine) for engine in it.fleet.engines.values()]


def journal(it: Appliance, kind: str) -> list[str]:
    return [event.text for event in it.hub.parts.journal.latest(100) if event.kind == kind]


async def test_an_adapter_is_loaded_on_all_engines_and_told(run_dir: Path, root: Path):
    async with appliance(run_dir, "well", "well", adapter_root=root) as it:
        operation = await load(it, "sql", make_dir(root / "sql"))
        [row] = it.supervisor.adapters()

        assert (operation.state, operation.kind, operation.target) == ("done", "lora.load", "sql")
        assert operation.result is not None
        assert operation.result["engines"] == ["e0", "e1"]
        assert (row.state, row.model, row.path) == ("loaded", "fake", str(root / "sql"))
        assert (row.rank, row.num_bytes, row.targets) == (8, 1000, ["q_proj", "v_proj"])
        assert len(row.content_hash) == 64
        assert states(row) == ["loaded", "loaded"]
        assert it.engine("e1").adapters == ["sql"]
        [route] = it.fleet.state(()).adapters
        assert (route.name, route.model, route.content_hash) == ("sql", "fake", row.content_hash)
        assert [engine.adapters for engine in it.fleet.state(()).engines] == [("sql",), ("sql",)]
        assert it.hub.snapshot().adapters == [row]
        assert journal(it, "adapter.loaded")[0].endswith("on e0, e1")


async def test_the_same_again_changes_nothing_and_other_content_replaces(run_dir: Path, root: Path):
    async with appliance(run_dir, "well", adapter_root=root) as it:
        first = await load(it, "sql", make_dir(root / "sql", "one"), pinned=True)
        again = await load(it, "sql", root / "sql")
        other = await load(it, "sql", make_dir(root / "sql", "two"))

        assert first.result == again.result
        assert again.result is not None
        assert other.result is not None
        assert other.result["content_hash"] != again.result["content_hash"]
        assert other.result["pinned"] is True, "what is not said stays as it was"


async def test_one_engine_that_refuses_leaves_nothing_on_the_others(run_dir: Path, root: Path):
    async with appliance(run_dir, "well", "well", adapter_root=root) as it:
        operation = await load(it, "bad", make_dir(root / "bad", "x", "refused-by-e1"))

        assert operation.state == "failed"
        assert operation.error == "e1 refuses: it does not fit the model; nothing has changed"
        assert it.supervisor.adapters() == []
        assert [list(e.facts.adapters.held) for e in it.fleet.engines.values()] == [[], []]
        assert it.fleet.state(()).adapters == ()
        assert it.state.adapters() == []


async def test_one_engine_that_refuses_brings_back_what_was_there(run_dir: Path, root: Path):
    async with appliance(run_dir, "well", "well", adapter_root=root) as it:
        good = await load(it, "sql", make_dir(root / "good", "good"))
        bad = await load(it, "sql", make_dir(root / "bad", "bad", "refused-by-e1"))
        [row] = it.supervisor.adapters()

        assert bad.state == "failed"
        assert good.result is not None
        assert row.content_hash == good.result["content_hash"]
        assert row.path == str(root / "good")
        assert is_loaded_everywhere(row)
        assert usable(it) == [("sql",), ("sql",)]


async def test_a_failed_replacement_in_place_says_which_engine_lost_the_old_content(
    run_dir: Path, root: Path
):
    async with appliance(run_dir, "well", "well", adapter_root=root) as it:
        await load(it, "sql", make_dir(root / "sql", "old"))
        operation = await load(it, "sql", make_dir(root / "sql", "new", "refused-by-e1"))
        [row] = it.supervisor.adapters()

        assert operation.error is not None
        assert "e0 could not go back: its files have changed" in operation.error
        assert "nothing has changed" not in operation.error
        assert states(row) == ["error", "loaded"]
        assert usable(it) == [(), ("sql",)]


async def test_engines_that_read_different_content_are_not_served_as_one(run_dir: Path, root: Path):
    make_dir(root, "elsewhere")
    async with appliance(run_dir, "well", "well", adapter_root=root) as it:
        operation = await load(it, "sql", make_dir(root / "sql", "x", "e1-is-blind"))

        assert operation.state == "failed"
        assert operation.error is not None
        assert operation.error.startswith("the engines read different content: e0 ")
        assert it.supervisor.adapters() == []


async def test_a_crash_does_not_lose_it_and_nobody_uses_it_before_it_is_back(
    run_dir: Path, root: Path
):
    async with appliance(run_dir, "well", adapter_root=root) as it:
        await load(it, "sql", make_dir(root / "sql"), pinned=True)
        pid = it.engine().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await it.until_state("starting", epoch=2)
        assert usable(it) == [()]
        assert it.supervisor.adapters()[0].state == "missing"

        row = await it.until_adapter("sql", is_loaded_everywhere)

        assert row.pinned
        assert usable(it) == [("sql",)]
        assert journal(it, "adapter.loaded")[0] == "is back on e0"


async def test_it_outlives_the_appliance(run_dir: Path, root: Path):
    async with appliance(run_dir, "well", adapter_root=root) as it:
        await load(it, "sql", make_dir(root / "sql"))
    async with appliance(run_dir, "well", adapter_root=root) as it:
        await it.until_adapter("sql", is_loaded_everywhere)
        unloaded = it.supervisor.unload_adapter("sql", "local")
        unloaded = await it.supervisor.operation(unloaded.id, 20.0)

        assert (unloaded.state, unloaded.result) == ("done", {"running_requests": 0})
        assert it.supervisor.adapters() == []
        assert it.fleet.engines["e0"].facts.adapters.held == {}
    async with appliance(run_dir, "well", adapter_root=root) as it:
        assert it.supervisor.adapters() == []


async def test_files_that_changed_meanwhile_are_reported_and_not_used(run_dir: Path, root: Path):
    async with appliance(run_dir, "well", adapter_root=root) as it:
        await load(it, "sql", make_dir(root / "sql", "one"))
    make_dir(root / "sql", "two")
    async with appliance(run_dir, "well", adapter_root=root) as it:
        row = await it.until_adapter("sql", lambda row: row.state == "error")

        assert row.engines[0].error == adapter_sync.CHANGED_ON_DISK
        assert it.fleet.engines["e0"].facts.adapters.held == {}
        assert it.fleet.state(()).adapters[0].failed_on == ("e0",)
        assert journal(it, "adapter.error") == [f"not on e0: {adapter_sync.CHANGED_ON_DISK}"]

        await load(it, "sql", root / "sql")
        assert is_loaded_everywhere(it.supervisor.adapters()[0])
        assert usable(it) == [("sql",)]


async def test_a_root_that_is_allowed_no_more_takes_its_adapters_away(
    run_dir: Path, root: Path, tmp_path: Path
):
    async with appliance(run_dir, "well", adapter_root=root) as it:
        await load(it, "sql", make_dir(root / "sql"))
    async with appliance(run_dir, "well", adapter_root=tmp_path / "other") as it:
        row = await it.until_adapter("sql", lambda row: row.state == "error")

        assert row.engines[0].error == "there is no such directory below an adapter root"
        assert usable(it) == [()]


async def test_an_engine_that_sleeps_catches_up_when_it_wakes(run_dir: Path, root: Path):
    async with appliance(run_dir, "well", "well", adapter_root=root) as it:
        await load(it, "old", make_dir(root / "old"))
        slept = it.supervisor.sleep("e1", SleepBody(), "local")
        await it.supervisor.operation(slept.id, 20.0)
        await load(it, "new", make_dir(root / "new"))
        unloaded = it.supervisor.unload_adapter("old", "local")
        await it.supervisor.operation(unloaded.id, 20.0)
        [row] = it.supervisor.adapters()
        assert (row.state, states(row)) == ("loaded", ["loaded", "missing"])

        it.supervisor.wake("e1", "local")
        await it.until_adapter("new", is_loaded_everywhere)

        assert list(it.fleet.engines["e1"].facts.adapters.held) == ["new"]


async def test_pins_are_set_and_taken_away(run_dir: Path, root: Path):
    async with appliance(run_dir, "well", adapter_root=root) as it:
        await load(it, "sql", make_dir(root / "sql"))
        for pinned in (True, False):
            begun = it.supervisor.pin_adapter("sql", "local", pinned=pinned)
            ended = await it.supervisor.operation(begun.id, 20.0)

            assert (ended.state, ended.kind) == ("done", "lora.pin" if pinned else "lora.unpin")
            assert it.supervisor.adapters()[0].pinned is pinned
            assert it.state.adapters()[0].pinned is pinned
            assert it.fleet.engines["e0"].facts.adapters.held["sql"].pinned is pinned
        nothing = it.supervisor.pin_adapter("sql", "local", pinned=False)
        assert (nothing.state, nothing.result) == ("done", {"already": "unpin"})


async def test_an_engine_that_loses_an_adapter_gets_it_again(run_dir: Path, root: Path):
    async with appliance(run_dir, "well", adapter_root=root) as it:
        await load(it, "sql", make_dir(root / "sql"))
        engine = it.fleet.engines["e0"]
        adapter_sync.forget(engine.facts.adapters)
        engine.facts.adapters.held.clear()
        assert usable(it) == [()]

        it.supervisor._adapters.engine_changed(engine)
        await it.until_adapter("sql", is_loaded_everywhere)


async def test_requests_that_ended_without_a_step_are_not_shown_for_ever(
    run_dir: Path, root: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(adapter_control, "REFRESH_S", 0.05)
    async with appliance(run_dir, "well", adapter_root=root) as it:
        await load(it, "sql", make_dir(root / "sql"))
        held = it.fleet.engines["e0"].facts.adapters.held
        held["sql"] = msgspec.structs.replace(held["sql"], running_requests=1)
        assert it.supervisor.adapters()[0].running_requests == 1
        async with asyncio.timeout(10):
            while it.supervisor.adapters()[0].running_requests:
                await asyncio.sleep(0.02)


async def test_two_changes_of_one_name_are_not_mixed(run_dir: Path, root: Path):
    make_dir(root / "a", "a")
    make_dir(root / "b", "b")
    async with appliance(run_dir, "well", adapter_root=root) as it:
        pid = it.engine("e0").pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # so that the first one is still under way
        body = LoadAdapterBody(path=str(root / "a"))
        first = await it.supervisor.load_adapter("sql", body, "one")
        assert (await it.supervisor.load_adapter("sql", body, "two")).id == first.id
        with pytest.raises(ConflictError, match="is under way"):
            await it.supervisor.load_adapter("sql", LoadAdapterBody(path=str(root / "b")), "two")
        os.kill(pid, signal.SIGCONT)
        assert (await it.supervisor.operation(first.id, 20.0)).state == "done"


async def test_what_cannot_be_loaded_is_refused_before_an_engine_hears_of_it(
    run_dir: Path, root: Path, tmp_path: Path
):
    good = make_dir(root / "good")
    async with appliance(run_dir, "well", adapter_root=root) as it:
        for name, path, code in (
            ("fake", good, "invalid_adapter"),
            ("a/b", good, "invalid_adapter"),
            ("good", make_dir(tmp_path / "outside"), "adapter_not_found"),
        ):
            with pytest.raises(RefusedError) as refused:
                await load(it, name, path)
            assert refused.value.code == code
        body = LoadAdapterBody(path=str(good), model="other")
        with pytest.raises(RefusedError, match="not served"):
            await it.supervisor.load_adapter("good", body, "local")
        with pytest.raises(NotFoundError):
            it.supervisor.unload_adapter("good", "local")
        sent = it.fleet.client.counts.sent
        assert sent["UtilityCall"] == 0


async def test_without_a_root_the_flag_is_named(run_dir: Path, root: Path):
    async with appliance(run_dir, "well") as it:
        with pytest.raises(ConflictError) as refused:
            await load(it, "sql", make_dir(root / "sql"))
        assert refused.value.hint is not None
        assert "--adapter-root" in refused.value.hint


async def test_with_all_engines_asleep_nothing_is_loaded_unseen(run_dir: Path, root: Path):
    async with appliance(run_dir, "well", adapter_root=root) as it:
        slept = it.supervisor.sleep("e0", SleepBody(), "local")
        await it.supervisor.operation(slept.id, 20.0)
        with pytest.raises(ConflictError, match="no engine that serves fake is ready") as refused:
            await load(it, "sql", make_dir(root / "sql"))
        assert refused.value.current_state == "asleep"
        assert it.supervisor.adapters() == []


async def test_an_engine_that_dies_while_it_loads_fails_the_load(run_dir: Path, root: Path):
    async with appliance(run_dir, "well", "well", adapter_root=root) as it:
        pid = it.engine("e1").pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        body = LoadAdapterBody(path=str(make_dir(root / "sql")))
        begun = await it.supervisor.load_adapter("sql", body, "local")
        await it.until_adapter("sql", lambda row: states(row) == ["missing", "loading"])
        os.kill(pid, signal.SIGKILL)
        ended = await it.supervisor.operation(begun.id, 20.0)

        assert ended.state == "failed"
        assert ended.error is not None
        assert "e1 (epoch 1) is gone" in ended.error
        assert it.fleet.engines["e0"].facts.adapters.held == {}
        assert it.supervisor.adapters() == []


async def test_the_prefix_cache_of_an_engine_is_reset(run_dir: Path):
    async with appliance(run_dir, "well") as it:
        begun = it.supervisor.reset_prefix_cache("e0", "local")
        ended = await it.supervisor.operation(begun.id, 20.0)

        assert (ended.state, ended.result) == ("done", {"dropped_blocks": 3})
        with pytest.raises(NotFoundError):
            it.supervisor.reset_prefix_cache("e9", "local")


async def test_an_appliance_without_adapters_asks_its_engines_nothing(run_dir: Path, root: Path):
    async with appliance(run_dir, "well", adapter_root=root) as it:
        await it.until(lambda row: row.steps >= 0 and row.heartbeat_age_s is not None)
        assert it.fleet.client.counts.sent["UtilityCall"] == 0
