"""What a request's record tells of the gateway: who held it up, and for how long."""

import asyncio
import time

import pytest

from appliance.control_link.messages import AdapterRoute
from appliance.gateway.data_plane import Timing
from engine.wire.calls import LoadAdapter
from tests.appliance.gateway.stand import CHAT, running
from tests.appliance.gateway.test_lifecycle import URL, ask_without_reading, until

pytestmark = pytest.mark.anyio

MS = 1_000_000


async def asked(stand, **body: object):
    http = await stand.http()
    answer = await http.post(URL, json={**CHAT, "max_tokens": 5, **body})
    return await stand.supervisor.record(answer.json()["id"][-24:])


async def test_outputs_and_their_ways_are_summed_up(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        record = await asked(stand)

        assert 1 <= record.outputs <= 5
        assert 0 < record.max_collected_ns <= record.collected_ns < 1000 * MS
        assert 0 < record.reply_transit_ns < 1000 * MS
        assert record.held_for is None
        assert record.send_blocked_ns == 0


async def test_all_choices_count(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        record = await asked(stand, n=3)

        assert record.outputs >= 3


async def test_a_gateway_that_stands_still_lets_outputs_lie(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path, step_s=0.02) as stand:
        asking = asyncio.ensure_future(asked(stand, max_tokens=20))
        await until(lambda: stand.engine.received)
        time.sleep(0.3)  # noqa: ASYNC251 - the loop of the gateway is this one

        record = await asking

        assert record.gateway_busy_ns > 200 * MS


async def test_a_client_that_does_not_read_is_what_held_the_sends_up(run_dir, tiny_model_path):
    patient = Timing(stall_s=0.4, settle_s=2.0)
    async with running(run_dir, tiny_model_path, timing=patient, step_s=0) as stand:
        sock = await ask_without_reading(stand.port, stream=True)
        await stand.supervisor.totals(1)
        sock.close()

        (record,) = stand.supervisor.records
        assert record.send_blocked_ns >= 390 * MS


@pytest.mark.parametrize(
    ("state", "expected"),
    [("asleep", "asleep"), ("waking", "waking"), ("starting", "starting")],
)
async def test_what_it_was_held_for_is_kept(run_dir, tiny_model_path, state, expected):
    async with running(run_dir, tiny_model_path) as stand:
        await stand.supervisor.moved(state=state, sleep_level=int(state == "asleep"))
        asking = asyncio.ensure_future(asked(stand))
        await until(lambda: any(x.journey.is_held for x in stand.gateway.plane.live.values()))
        stand.supervisor.move(state="ready", sleep_level=0)

        record = await asking

        assert record.held_for == expected
        assert record.held_ns > 0


async def test_an_engine_that_drains_is_held_for_what_comes_of_it(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        await stand.supervisor.moved(state="draining")
        asking = asyncio.ensure_future(asked(stand))
        await until(lambda: any(x.journey.is_held for x in stand.gateway.plane.live.values()))
        await stand.supervisor.moved(state="starting")
        await until(
            lambda: any(x.journey.held_for == "starting" for x in stand.gateway.plane.live.values())
        )
        stand.supervisor.move(state="ready")

        assert (await asking).held_for == "starting"


async def test_an_adapter_that_is_not_loaded_yet_is_waited_for(run_dir, tiny_model_path, tmp_path):
    adapter = AdapterRoute(name="sql", model="tiny", content_hash="h")

    def prepare(supervisor) -> None:
        supervisor.adapters = (adapter,)

    async with running(run_dir, tiny_model_path, prepare=prepare) as stand:
        (tmp_path / "sql").mkdir()
        stand.engine.adapters.answer(LoadAdapter(name="sql", path=str(tmp_path / "sql")))
        asking = asyncio.ensure_future(asked(stand, model="sql"))
        await until(lambda: any(x.journey.is_held for x in stand.gateway.plane.live.values()))
        stand.supervisor.move(adapters=("sql",))

        assert (await asking).held_for == "adapter"


async def test_one_whose_engine_died_is_held_until_there_is_another(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        stand.engine.may_step.clear()
        asking = asyncio.ensure_future(asked(stand))
        await until(lambda: stand.engine.received)
        await stand.kill_engine()
        await until(lambda: any(x.journey.is_held for x in stand.gateway.plane.live.values()))
        await stand.restart_engine()

        record = await asking

        assert record.requeues == 1
        assert record.held_for == "backoff"
        assert record.held_ns > 0
