"""Accounts count, and the ledger adds them up so that nothing is lost and every sum closes."""

import msgspec
import pytest

from appliance.control_link.messages import GatewayAccounts
from appliance.telemetry import names
from appliance.telemetry.accounts import Accounts
from appliance.telemetry.ledger import GATEWAY_DIED, MAX_KEYS, MAX_LABEL_VALUES, Ledger, Totals
from appliance.telemetry.names import METRICS, Metric

ROUTE = "/v1/chat/completions"


def test_a_snapshot_carries_counts_levels_and_histograms():
    accounts = Accounts("gateway-0", 3)
    accounts.inc(names.REQUESTS_RECEIVED, (ROUTE,))
    accounts.inc(names.REQUESTS_RECEIVED, (ROUTE,), 2)
    accounts.observe(names.TTFT, 0.005, ("tiny",))
    accounts.observe(names.TTFT, 99, ("tiny",))

    snapshot = accounts.snapshot((names.REQUESTS_RUNNING, (ROUTE,), 4))

    assert (snapshot.process, snapshot.epoch) == ("gateway-0", 3)
    assert [(c.name, c.labels, c.value) for c in snapshot.counters] == [
        ("quarterdeck_requests_received_total", (("route", ROUTE),), 3)
    ]
    assert [(g.name, g.value) for g in snapshot.gauges] == [("quarterdeck_requests_running", 4)]
    (histogram,) = snapshot.histograms
    assert histogram.counts[1] == 1, "0.005 falls in the bucket whose upper edge it is"
    assert histogram.counts[-1] == 1
    assert histogram.sum == pytest.approx(99.005)


def test_a_snapshot_survives_the_wire():
    accounts = Accounts("gateway-0", 1)
    accounts.observe(names.TTFT, 0.1, ("tiny",))
    message = GatewayAccounts(snapshot=accounts.snapshot(), live=())

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=GatewayAccounts) == message


def test_wrong_use_is_refused():
    accounts = Accounts("gateway-0", 1)
    with pytest.raises(ValueError, match="takes labels"):
        accounts.inc(names.REQUESTS_RECEIVED)
    with pytest.raises(ValueError, match="is not in"):
        accounts.inc(Metric("made_up", "counter", "?"))
    with pytest.raises(ValueError, match="is a histogram"):
        accounts.inc(names.TTFT, ("tiny",))
    with pytest.raises(ValueError, match="is a counter"):
        accounts.observe(names.REQUESTS_RECEIVED, 1, (ROUTE,))
    with pytest.raises(ValueError, match="cannot fall"):
        accounts.inc(names.REQUESTS_RECEIVED, (ROUTE,), -1)


def test_names_are_well_formed():
    for metric in METRICS.values():
        assert metric.name.startswith("quarterdeck_")
        assert ":" not in metric.name
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert list(metric.buckets) == sorted(metric.buckets)


def gateway(name: str, epoch: int) -> Accounts:
    """Ten received, 2 rejected, 7 accepted (1 not decided on), 4 ended, 3 running."""
    accounts = Accounts(name, epoch)
    accounts.inc(names.REQUESTS_RECEIVED, (ROUTE,), 10)
    accounts.inc(names.REQUESTS_REJECTED, (ROUTE, "invalid_request"), 2)
    accounts.inc(names.REQUESTS_ACCEPTED, (ROUTE,), 7)
    accounts.inc(names.REQUESTS_ENDED, (ROUTE, "finished"), 3)
    accounts.inc(names.REQUESTS_ENDED, (ROUTE, "aborted"), 1)
    accounts.set(names.REQUESTS_RUNNING, (ROUTE,), 3)
    accounts.observe(names.TTFT, 0.1, ("tiny",))
    return accounts


def assert_closes(totals: Totals) -> None:
    total = totals.total
    assert total(names.REQUESTS_RECEIVED) == total(names.REQUESTS_REJECTED) + total(
        names.REQUESTS_ACCEPTED
    )
    ended = sum(
        total(names.REQUESTS_ENDED, outcome) for outcome in ("finished", "aborted", "failed")
    )
    assert total(names.REQUESTS_ACCEPTED) == ended + total(names.REQUESTS_RUNNING)


def test_the_accounts_of_a_dead_gateway_close_and_stay():
    ledger = Ledger()
    ledger.enter(gateway("gateway-0", 1).snapshot())
    ledger.died("gateway-0", 1)
    ledger.enter(gateway("gateway-0", 1).snapshot())  # came late

    totals = ledger.totals()

    assert_closes(totals)
    assert totals.total(names.REQUESTS_RECEIVED) == 10
    assert totals.total(names.REQUESTS_ENDED, "failed") == 3
    assert totals.total(names.REQUESTS_RUNNING) == 0
    rejected = totals.values[names.REQUESTS_REJECTED.name]
    assert rejected[ROUTE, GATEWAY_DIED] == 1

    successor = gateway("gateway-0", 2)
    successor.inc(names.REQUESTS_REJECTED, (ROUTE, "invalid_request"))
    ledger.enter(successor.snapshot())
    totals = ledger.totals()
    assert_closes(totals)
    assert totals.total(names.REQUESTS_RECEIVED) == 20
    assert sum(totals.histograms[names.TTFT.name][("tiny",)].counts) == 2


def test_counts_of_several_gateways_add_up_and_an_older_snapshot_is_ignored():
    ledger = Ledger()
    first = gateway("gateway-0", 1)
    old = first.snapshot()
    first.inc(names.REQUESTS_RECEIVED, (ROUTE,), 5)
    ledger.enter(first.snapshot())
    ledger.enter(old)
    ledger.enter(gateway("gateway-1", 1).snapshot())

    assert ledger.totals().total(names.REQUESTS_RECEIVED) == 25


def test_label_values_are_a_closed_set():
    accounts = Accounts("gateway-0", 1)
    for number in range(MAX_LABEL_VALUES + 5):
        accounts.inc(names.REQUESTS_RECEIVED, (f"/scan/{number}",))
    accounts.inc(names.MESSAGES_SENT, ("gateway-0", "NoSuchMessage"))
    accounts.inc(names.MESSAGES_SENT, ("gateway-0", "AddRequest"))
    ledger = Ledger()
    ledger.enter(accounts.snapshot())

    totals = ledger.totals()

    received = totals.values[names.REQUESTS_RECEIVED.name]
    assert len(received) == MAX_LABEL_VALUES + 1
    assert received["other",] == 5
    assert set(totals.values[names.MESSAGES_SENT.name]) == {
        ("gateway-0", "other"),
        ("gateway-0", "AddRequest"),
    }


def test_a_level_that_is_not_read_again_is_gone():
    """Complaint: gauges of what is no longer there stay up."""
    accounts = Accounts("supervisor", 0)
    first = accounts.snapshot(
        (names.ENGINE_RUNNING, ("e0",), 4), (names.ENGINE_RESTARTS, ("e0",), 1)
    )
    second = accounts.snapshot()

    assert [gauge.value for gauge in first.gauges] == [4]
    assert [counter.value for counter in first.counters] == [1]
    assert (second.gauges, second.counters) == ((), ())


def test_a_hundred_keys_are_labels_over_all_gateways():
    ledger = Ledger()
    for number in range(2):
        accounts = Accounts(f"gateway-{number}", 1)
        for key in range(80):
            accounts.inc(names.KEY_REQUESTS, (f"key-{number}-{key}", "finished"))
            accounts.inc(names.KEY_TOKENS, (f"key-{number}-{key}", "completion"), 3)
        ledger.enter(accounts.snapshot())

    totals = ledger.totals()

    requests, tokens = (
        totals.values[metric.name] for metric in (names.KEY_REQUESTS, names.KEY_TOKENS)
    )
    assert len(requests) == MAX_KEYS + 1
    assert requests["other", "finished"] == 60
    assert {key for key, _ in requests} == {key for key, _ in tokens}, "the same keys everywhere"
    assert totals.total(names.KEY_TOKENS) == 3 * totals.total(names.KEY_REQUESTS) == 480


def test_a_histogram_of_other_edges_is_left_out_rather_than_wrong():
    accounts = Accounts("e0", 1)
    accounts.set_histogram(names.ENGINE_STEP_DURATION, ("e0",), (), 0.0)
    accounts.set_histogram(names.ENGINE_STEP_DURATION, ("e1",), (1, 2, 3), 0.5)
    counts = tuple(range(len(names.ENGINE_STEP_DURATION.buckets) + 1))
    accounts.set_histogram(names.ENGINE_STEP_DURATION, ("e2",), counts, 1.5)

    (kept,) = accounts.snapshot().histograms

    assert (kept.labels, kept.counts, kept.sum) == ((("engine", "e2"),), counts, 1.5)
