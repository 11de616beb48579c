"""The hub runs beside everything else and never gets in its way."""

import asyncio
import json
import logging

import msgspec
import pytest

from appliance.telemetry.hub import Hub
from appliance.telemetry.records import LiveTokens, RequestFirstToken
from engine.clock import now_ns
from tests.appliance.telemetry.workload import (
    accepted,
    engine_stats,
    gateway_accounts,
    gateway_records,
    record,
)

pytestmark = pytest.mark.anyio


async def test_a_report_that_makes_no_sense_is_counted_and_not_raised(
    hub: Hub, caplog: pytest.LogCaptureFixture
):
    broken = msgspec.structs.replace(record(now_ns()), received_ns="yesterday")
    with caplog.at_level(logging.ERROR):
        hub.gateway_records(gateway_records(finished=(broken,)))
        hub.gateway_records(gateway_records(finished=(broken,)))

    assert hub.stats().dropped_records == 2
    assert len(caplog.records) == 1


async def test_the_running_hub_streams_statistics_and_progress(hub: Hub):
    reader = hub.subscribe(None)
    await anext(reader)
    request = record(now_ns())
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(hub.run())
        hub.engine_message("e0", 1, engine_stats())
        hub.gateway_records(gateway_records(accepted=(accepted(request),)))
        snapshot = empty_accounts()
        live = LiveTokens(request.request_id, 3, "decode")
        hub.gateway_accounts(gateway_accounts(snapshot, live=(live,)))
        seen: dict[str, dict] = {}
        async with asyncio.timeout(10):
            async for _, name, text in reader:
                seen[name] = json.loads(text)
                if "stats" in seen:
                    break
        running.cancel()

    assert (seen["stats"]["running"], seen["stats"]["waiting"]) == (1, 2)
    assert (seen["request"]["state"], seen["request"]["completion_tokens"]) == ("decode", 3)


def empty_accounts():
    from appliance.telemetry.accounts import Accounts

    return Accounts("gateway-0", 1).snapshot()


async def test_live_requests_are_shown_before_ended_ones(hub: Hub):
    ended, running = record(now_ns()), record(now_ns())
    hub.gateway_records(gateway_records(finished=(ended,), accepted=(accepted(running),)))
    first = RequestFirstToken(
        request_id=running.request_id, at_ns=now_ns(), engine_id="e1", engine_epoch=1
    )
    hub.gateway_records(gateway_records(first_tokens=(first,)))

    assert [row.id for row in hub.requests(None, 10)] == [running.request_id, ended.request_id]
    assert [row.state for row in hub.requests("live", 10)] == ["decode"]
    assert [row.engine for row in hub.requests("decode", 10)] == ["e1"]
    assert [row.id for row in hub.requests("finished", 10)] == [ended.request_id]
    assert [row.id for row in hub.requests("ended", 10)] == [ended.request_id]
    assert len(hub.requests(None, 1)) == 1


async def test_a_request_whose_end_was_lost_leaves_when_its_gateway_is_idle(hub: Hub):
    lost = msgspec.structs.replace(accepted(record(now_ns())), accepted_ns=0)
    hub.gateway_records(gateway_records(accepted=(lost,)))
    assert len(hub.requests("live", 10)) == 1

    hub.gateway_accounts(gateway_accounts(empty_accounts()))

    assert hub.requests("live", 10) == []
