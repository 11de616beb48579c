"""What a gateway counts: every sum closes, by route, by model and by key; promises are judged."""

import asyncio
from collections import Counter

import msgspec
import pytest

from appliance.control_link.messages import GatewayAccounts, SloTargets
from appliance.gateway.journey import Journey
from appliance.gateway.ledger import MAX_KEYS, MAX_MODELS, Ledger
from appliance.gateway.request_context import RequestContext
from appliance.telemetry import names
from appliance.telemetry.accounts import Accounts
from appliance.telemetry.records import AccountsSnapshot
from engine.wire.header import new_context
from engine.wire.messages import AddRequest, RequestOutput
from tests.appliance.gateway.fake_supervisor import (
    MODEL,
    FakeSupervisor,
    a_route,
    key_record,
)
from tests.appliance.gateway.stand import CHAT, Stand, running

pytestmark = pytest.mark.anyio

URL = "/v1/chat/completions"
ENDLESS = {**CHAT, "max_tokens": 400, "ignore_eos": True, "stream": True}


def sums(snapshot: AccountsSnapshot, name: str) -> Counter[tuple[str, ...]]:
    """Values by label values; of a histogram, the number of observations."""
    found: Counter[tuple[str, ...]] = Counter()
    for sample in (*snapshot.counters, *snapshot.gauges):
        if sample.name == name:
            found[tuple(value for _, value in sample.labels)] += sample.value
    for histogram in snapshot.histograms:
        if histogram.name == name:
            found[tuple(value for _, value in histogram.labels)] += sum(histogram.counts)
    return found


async def settled(stand: Stand, ended: int) -> AccountsSnapshot:
    await stand.supervisor.totals(ended)
    await stand.supervisor.hear(GatewayAccounts, lambda body: not body.live)
    return next(
        body.snapshot
        for body in reversed(stand.supervisor.said)
        if isinstance(body, GatewayAccounts)
    )


async def leave(stand: Stand, tokens: int = 1) -> None:
    """Read some of a stream, then close the connection."""
    http = await stand.http()
    async with http.stream("POST", URL, json=ENDLESS) as response:
        seen = 0
        async for line in response.aiter_lines():
            seen += '"content":"' in line and '"content":""' not in line
            if seen >= tokens:
                return


async def abandon_unanswered(stand: Stand) -> None:
    """Leave before there is a token: after the first comment, which comes after 0.1 s."""
    http = await stand.http()
    stand.engine.may_step.clear()
    async with http.stream("POST", URL, json=ENDLESS) as response:
        await anext(response.aiter_lines())
    async with asyncio.timeout(5):
        given_up = stand.engine.received[-1].request_id
        while not any(given_up in abort.request_ids for abort in stand.engine.aborts):
            await asyncio.sleep(0.005)
    stand.engine.may_step.set()


async def test_aborted_requests_are_counted_and_their_tokens_with_them(run_dir, tiny_model_path):
    """Complaints: aborted is always 0; aborted requests are in tokens but in no request metric."""
    async with running(run_dir, tiny_model_path, step_s=0.001) as stand:
        http = await stand.http()
        for _ in range(2):
            assert (await http.post(URL, json={**CHAT, "max_tokens": 5})).status_code == 200
        for _ in range(3):
            await leave(stand, tokens=2)
        snapshot = await settled(stand, 5)

    assert sums(snapshot, "quarterdeck_requests_ended_total")[URL, "aborted"] == 3
    assert sums(snapshot, "quarterdeck_model_requests_total") == {
        (MODEL, "finished"): 2,
        (MODEL, "aborted"): 3,
    }
    assert sums(snapshot, "quarterdeck_key_requests_total") == {
        ("key-inference", "finished"): 2,
        ("key-inference", "aborted"): 3,
    }
    completion = sums(snapshot, "quarterdeck_completion_tokens_total")[MODEL,]
    assert completion >= 2 * 5 + 3 * 2
    assert sums(snapshot, "quarterdeck_request_completion_tokens")[MODEL,] == 5
    assert (
        sums(snapshot, "quarterdeck_key_tokens_total")["key-inference", "completion"] == completion
    )
    assert sums(snapshot, "quarterdeck_request_duration_seconds") == {
        (MODEL, "finished"): 2,
        (MODEL, "aborted"): 3,
    }


async def test_the_gauge_of_running_requests_is_zero_after_aborts(run_dir, tiny_model_path):
    """Complaint: gauges stay up after aborts."""
    async with running(run_dir, tiny_model_path, step_s=0.001) as stand:
        await asyncio.gather(*(leave(stand) for _ in range(8)))
        snapshot = await settled(stand, 8)

    assert sums(snapshot, "quarterdeck_requests_running") == {(URL,): 0, ("/v1/completions",): 0}
    assert sums(snapshot, "quarterdeck_queue_depth")["gateway-0", "records"] <= 50


async def test_failures_are_counted_from_the_first_scrape_on(run_dir, tiny_model_path):
    """Complaint: no error counter, so no success rate. A rate needs the zero before the first."""
    async with running(run_dir, tiny_model_path) as stand:
        first = (await stand.supervisor.hear(GatewayAccounts)).snapshot
        assert sums(first, "quarterdeck_requests_ended_total")[URL, "failed"] == 0
        assert (URL, "failed") in sums(first, "quarterdeck_requests_ended_total")
        assert ("availability", "bad") in sums(first, "quarterdeck_slo_events_total")


async def test_ttft_is_observed_once_for_each_request_that_produced_a_token(
    run_dir, tiny_model_path
):
    """Complaint: the count of TTFT is not that of the requests."""
    async with running(run_dir, tiny_model_path, step_s=0.001) as stand:
        http = await stand.http()
        bodies = [{"max_tokens": 3}, {"max_tokens": 3, "n": 3}, {"max_tokens": 2, "stream": True}]
        for body in bodies:
            assert (await http.post(URL, json={**CHAT, **body})).status_code == 200
        await leave(stand)
        assert (await http.post(URL, json={**CHAT, "n": 0})).status_code == 400
        await abandon_unanswered(stand)
        snapshot = await settled(stand, 6)

    assert sums(snapshot, "quarterdeck_time_to_first_token_seconds") == {(MODEL,): 4}
    assert sums(snapshot, "quarterdeck_requests_accepted_total")[URL,] == 5


async def test_times_between_tokens_are_per_token_whatever_a_step_brings(run_dir, tiny_model_path):
    """Complaint: with speculative decoding the inter-token latency is per step, not per token."""

    def thrice(request: AddRequest, output: RequestOutput) -> RequestOutput:
        return msgspec.structs.replace(output, new_token_ids=output.new_token_ids * 3)

    async with running(run_dir, tiny_model_path, step_s=0.03) as stand:
        stand.engine.amend = thrice
        http = await stand.http()
        body = {**CHAT, "max_tokens": 6, "ignore_eos": True}
        assert (await http.post(URL, json=body)).status_code == 200
        snapshot = await settled(stand, 1)

    made = sums(snapshot, "quarterdeck_completion_tokens_total")[MODEL,]
    gaps = next(h for h in snapshot.histograms if h.name == "quarterdeck_inter_token_seconds")
    assert sum(gaps.counts) == made - 3, "all tokens but those of the first output"
    assert 0.009 < gaps.sum / sum(gaps.counts) < 0.02, "a third of a step each"


async def test_shares_by_key_and_by_model_sum_up_to_the_totals(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path, step_s=0.001) as stand:
        keyed, local, nobody = await stand.http(), await stand.local_http(), await stand.http(None)
        wrong = await stand.http("sk-wrong")
        await keyed.post(URL, json={**CHAT, "max_tokens": 2})
        await keyed.post(URL, json={**CHAT, "max_tokens": -2})
        await keyed.post(URL, json={**CHAT, "model": "alias", "max_tokens": 2})
        await keyed.post(URL, json={**CHAT, "model": "no such model"})
        await local.post(URL, json={**CHAT, "max_tokens": 2})
        assert (await nobody.post(URL, json=CHAT)).status_code == 401
        assert (await wrong.post(URL, json=CHAT)).status_code == 401
        await leave(stand)
        snapshot = await settled(stand, 8)

    keys = sums(snapshot, "quarterdeck_key_requests_total")
    models = sums(snapshot, "quarterdeck_model_requests_total")
    assert keys == {
        ("key-inference", "finished"): 2,
        ("key-inference", "rejected"): 2,
        ("key-inference", "aborted"): 1,
        ("local", "finished"): 1,
        ("anonymous", "rejected"): 2,
    }
    assert models["alias", "finished"] == 1
    assert models["other", "rejected"] == 4, "no name that a stranger made up is a label"
    for shares in (keys, models):
        by_outcome: Counter[str] = Counter()
        for (_, outcome), count in shares.items():
            by_outcome[outcome] += count
        rejected = sums(snapshot, "quarterdeck_requests_rejected_total")
        ended = sums(snapshot, "quarterdeck_requests_ended_total")
        assert by_outcome.pop("rejected") == rejected.total()
        assert by_outcome.total() == ended.total()
        assert all(ended[URL, outcome] == count for outcome, count in by_outcome.items())
    for kind, total in (("prompt", "prompt_tokens"), ("completion", "completion_tokens")):
        by_key = sum(
            count
            for labels, count in sums(snapshot, "quarterdeck_key_tokens_total").items()
            if labels[1] == kind
        )
        assert by_key == sums(snapshot, f"quarterdeck_{total}_total").total() > 0


async def test_promises_are_judged_by_what_the_supervisor_says(run_dir, tiny_model_path):
    def promise(supervisor: FakeSupervisor) -> None:
        supervisor.slo = SloTargets(ttft_s=0.05, tpot_s=1.0)

    async with running(run_dir, tiny_model_path, prepare=promise) as stand:
        http = await stand.http()
        quick = await http.post(URL, json={**CHAT, "max_tokens": 3})
        stand.engine.may_step.clear()
        async with asyncio.TaskGroup() as tasks:
            late = tasks.create_task(http.post(URL, json={**CHAT, "max_tokens": 3}))
            await asyncio.sleep(0.08)
            stand.engine.may_step.set()
        bad_input = await http.post(URL, json={**CHAT, "n": 0})
        kept = await stand.supervisor.record(quick.headers["x-request-id"])
        broken = await stand.supervisor.record(late.result().headers["x-request-id"])
        refused = await stand.supervisor.record(bad_input.headers["x-request-id"])
        snapshot = await settled(stand, 3)

    assert (kept.slo_ttft_ok, kept.slo_tpot_ok) == (True, True)
    assert (broken.slo_ttft_ok, broken.slo_tpot_ok) == (False, True)
    assert (refused.slo_ttft_ok, refused.slo_tpot_ok) == (None, None)
    assert sums(snapshot, "quarterdeck_slo_events_total") == {
        ("availability", "good"): 2, ("availability", "bad"): 0,
        ("ttft", "good"): 1, ("ttft", "bad"): 1,
        ("tpot", "good"): 2, ("tpot", "bad"): 0,
    }  # fmt: skip


async def test_who_gives_up_on_a_late_first_token_was_not_served_in_time(run_dir, tiny_model_path):
    def promise(supervisor: FakeSupervisor) -> None:
        supervisor.slo = SloTargets(ttft_s=0.05, tpot_s=1.0)

    async with running(run_dir, tiny_model_path, prepare=promise) as stand:
        await abandon_unanswered(stand)
        snapshot = await settled(stand, 1)

    events = sums(snapshot, "quarterdeck_slo_events_total")
    assert (events["ttft", "bad"], events["availability", "good"]) == (1, 1)


async def test_want_of_capacity_is_unavailability_and_a_keys_own_limit_is_not(
    run_dir, tiny_model_path
):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()
        stand.supervisor.engines["e1"] = a_route(
            tiny_model_path, "e1", state="stopped", served_names=("broken",)
        )
        await stand.supervisor.acked(stand.supervisor.publish())
        assert (await http.post(URL, json={**CHAT, "model": "broken"})).status_code == 503
        stand.supervisor.limits = msgspec.structs.replace(
            stand.supervisor.limits, requests_per_minute=0.001
        )
        await stand.supervisor.acked(stand.supervisor.publish())
        answers = [(await http.post(URL, json={**CHAT, "max_tokens": 1})) for _ in range(3)]
        assert answers[-1].status_code == 429
        served = sum(answer.status_code == 200 for answer in answers)
        snapshot = await settled(stand, 4)

    events = sums(snapshot, "quarterdeck_slo_events_total")
    assert (events["availability", "bad"], events["availability", "good"]) == (1, served)


async def test_phases_and_the_process_itself_are_told(run_dir, tiny_model_path):
    async with running(run_dir, tiny_model_path) as stand:
        http = await stand.http()
        await http.post(URL, json={**CHAT, "max_tokens": 3})
        await stand.supervisor.totals(1)
        await asyncio.sleep(0.12)  # two timers of the lag
        stand.gateway.plane.ledger.version += 1
        body = await stand.supervisor.hear(
            GatewayAccounts, lambda b: sums(b.snapshot, "quarterdeck_loop_lag_seconds").total() > 1
        )

    snapshot = body.snapshot
    assert sums(snapshot, "quarterdeck_phase_seconds") == {
        (phase,): 1 for phase in ("auth", "admission", "tokenize", "dispatch", "stream")
    }
    assert sums(snapshot, "quarterdeck_process_resident_bytes")["gateway-0",] > 1 << 20
    assert sums(snapshot, "quarterdeck_process_cpu_seconds_total")["gateway-0", "user"] > 0
    assert sums(snapshot, "quarterdeck_process_threads")["gateway-0",] >= 1


def a_journey(key_id: str) -> Journey:
    context = RequestContext(
        hex_id="0" * 24,
        trace=new_context(),
        parent_span_id=None,
        received_ns=0,
        is_local=False,
        client_request_id=None,
        key=msgspec.structs.replace(key_record("x", "inference"), key_id=key_id),
    )
    return Journey(context, route=URL, method="POST")


def test_adapters_that_come_and_go_by_the_thousand_do_not_grow_the_accounts():
    accounts = Accounts("gateway-0", 1)
    ledger = Ledger(accounts, "gateway-0")
    for number in range(10_000):
        journey = a_journey("key")
        journey.model, journey.base_model = f"adapter-{number}", MODEL
        ledger.close(journey)

    shares = sums(accounts.snapshot(), "quarterdeck_model_requests_total")

    assert len(shares) == MAX_MODELS + 1
    assert shares["other", "rejected"] == 10_000 - MAX_MODELS
    assert shares.total() == 10_000


def test_a_hundred_keys_have_accounts_and_the_others_share_one():
    accounts = Accounts("gateway-0", 1)
    ledger = Ledger(accounts, "gateway-0")
    for number in range(MAX_KEYS + 50):
        ledger.close(a_journey(f"key-{number}"))

    shares = sums(accounts.snapshot(), "quarterdeck_key_requests_total")

    assert len(shares) == MAX_KEYS + 1
    assert shares["other", "rejected"] == 50
    assert shares.total() == MAX_KEYS + 50
    assert accounts.value(names.REQUESTS_RECEIVED, (URL,)) == MAX_KEYS + 50
