"""Two gateways, two engines, everything that can happen: no message is without its spans."""

import itertools
import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.integration.appliance_process import ApplianceProcess, wait_until
from tests.integration.otlp_sink import OtlpSink

pytestmark = pytest.mark.process

TRACED = ("AddRequest", "AbortRequests", "EngineOutputs", "UtilityCall", "UtilityReply")
ALIVE = ("gateway-0", "gateway-1", "supervisor", "e1")
"""Processes that live through the whole test; e0 is killed."""
REFUSALS = ("no route", "its queue is full")
UNTOLD_S = 0.3
WORKERS = 8

Counts = dict[tuple[str, str], float]


@pytest.fixture(scope="module")
def sink() -> Iterator[OtlpSink]:
    sink = OtlpSink()
    yield sink
    sink.close()


@pytest.fixture(scope="module")
def appliance(
    sink: OtlpSink, tiny_model_path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApplianceProcess]:
    appliance = ApplianceProcess(
        tmp_path_factory.mktemp("complete"), str(tiny_model_path), "--dtype", "float32",
        "--engines", "2", "--gateways", "2", "--otlp-endpoint", sink.endpoint, "--drain-s", "5",
    )  # fmt: skip
    yield appliance.start()
    appliance.stop()


# ---------------------------------------------------------------- load


def send(appliance: ApplianceProcess, model: str, number: int) -> None:
    """One request of one of eight kinds, over a connection of its own: any gateway may get it."""
    body: dict[str, Any] = {"model": model, "temperature": 0, "ignore_eos": True}
    path = "/v1/chat/completions"
    messages = [{"role": "user", "content": f"request {number}"}]
    match number % 8:
        case 0:
            body |= {"messages": messages, "stream": True, "max_tokens": 12}
        case 1:
            body |= {"messages": messages, "n": 2, "max_tokens": 4, "temperature": 1}
        case 2:
            body |= {"messages": messages, "stream": True, "max_tokens": 300}
        case 3:
            path, body = "/v1/completions", body | {"prompt": ["a b", "c d"], "max_tokens": 3}
        case 4:
            body |= {"messages": messages, "max_tokens": -1}
        case 5:
            body |= {"messages": messages, "max_tokens": 2, "stop": ["e"]}
        case _:
            body |= {"messages": messages, "max_tokens": 5}
    url, headers = f"{appliance.url}{path}", appliance.headers
    with (
        httpx.Client(timeout=60) as client,
        client.stream("POST", url, json=body, headers=headers) as response,
    ):
        for frame in response.iter_lines():
            if number % 8 == 2 and frame.startswith("data: "):
                return  # goes away in the middle
        # a stream that its engine left ends without [DONE]; that is for other tests


def load(appliance: ApplianceProcess, count: int) -> None:
    numbers, model = iter(range(count)), appliance.model
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            send(appliance, model, number)

    workers = [threading.Thread(target=work) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def operate(appliance: ApplianceProcess) -> None:
    """Utility calls of several kinds, beside what runs: a request may wake what sleeps."""

    def done(verb: str) -> bool:
        answer = appliance.admin(f"/admin/v1/engines/e1/{verb}?wait=60", "POST")
        return answer.status_code == 202 and answer.json()["state"] == "done"

    for verb in ("sleep", "wake", "reset-prefix-cache"):
        wait_until(lambda verb=verb: done(verb), 30, verb)


def kill_engine(appliance: ApplianceProcess) -> None:
    """Kill one while nobody can be told for a moment: requests are sent to it and refused."""
    before = appliance.engine("e0")
    with held(appliance.process.pid):
        os.kill(before["pid"], signal.SIGKILL)
        time.sleep(UNTOLD_S)

    def is_back() -> bool:
        now = appliance.engine("e0")
        return now["epoch"] > before["epoch"] and now["state"] == "ready"

    wait_until(is_back, 40, "e0 is back")


@contextmanager
def held(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


# ---------------------------------------------------------------- what is claimed


def counted(appliance: ApplianceProcess, metric: str) -> Counts:
    return {
        (process, message): appliance.metric(metric, process=process, message=message)
        for process, message in itertools.product(ALIVE, TRACED)
    }


def exported(sink: OtlpSink, kind: str) -> Counts:
    """Spans of messages that a socket took or gave: one that it refused has its span, too."""
    found = Counter(
        (resource["quarterdeck.process"], span.name.removeprefix(f"{kind} "))
        for resource, span in list(sink.spans)
        if span.name.startswith(f"{kind} ") and not was_refused(span)
    )
    return {key: float(found[key]) for key in itertools.product(ALIVE, TRACED)}


def was_refused(span: Span) -> bool:
    """Say whether no socket took it: its engine was gone and not yet known to be."""
    errors = {a.value.string_value for a in span.attributes if a.key == "error.type"}
    return not errors.isdisjoint(REFUSALS)


def assert_every_message_has_its_spans(appliance: ApplianceProcess, sink: OtlpSink) -> None:
    def gaps() -> dict[str, Any]:
        return {
            f"{key} {kind}": (count, spans[key])
            for metric, kind in (("sent", "send"), ("received", "process"))
            for spans in (exported(sink, kind),)
            for key, count in counted(appliance, f"quarterdeck_messages_{metric}_total").items()
            if count != spans[key]
        }

    try:
        wait_until(lambda: not gaps(), 30)
    except AssertionError:
        assert gaps() == {}
    sent = counted(appliance, "quarterdeck_messages_sent_total")
    for message in TRACED:
        assert sum(count for (_, name), count in sent.items() if name == message) > 0, message
    for gateway in ("gateway-0", "gateway-1"):
        assert sent[gateway, "AddRequest"] > 0
    ids = Counter(span.span_id for _, span in sink.spans)
    assert max(ids.values()) == 1
    assert appliance.metric("quarterdeck_records_dropped_total") == 0


def stored(appliance: ApplianceProcess) -> list[dict[str, Any]]:
    rows = appliance.admin("/admin/v1/traces?limit=1000").json()["items"]
    return [appliance.admin(f"/admin/v1/traces/{row['request_id']}").json() for row in rows]


def assert_tree(trace: dict[str, Any]) -> None:
    """One root, nothing without a parent, and every message processed after it was sent."""
    spans = trace["spans"]
    by_id = {span["span_id"]: span for span in spans}
    assert len(by_id) == len(spans)
    assert [span["name"] for span in spans if span["parent_id"] not in by_id] == [spans[0]["name"]]
    for span in spans:
        assert span["end_ns"] >= span["start_ns"], span
        if (
            span["kind"] == "consumer"
            and (parent := by_id[span["parent_id"]])["kind"] == "producer"
        ):
            assert span["start_ns"] >= parent["end_ns"], (parent, span)
            assert span["attributes"]["quarterdeck.hop.transit_ns"] >= 0


def assert_tiles(trace: dict[str, Any]) -> None:
    """What is below the root, the chat span and each choice tiles it without a gap."""
    children: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for span in trace["spans"][1:]:
        if span["kind"] == "internal" and not span["name"].startswith("prefill chunk"):
            children[span["parent_id"]].append(span)
    root = trace["spans"][0]
    _assert_tiled(root, children[root["span_id"]])
    for chat in children[root["span_id"]]:
        choices = [one for one in children[chat["span_id"]] if one["name"].startswith("choice ")]
        for choice in choices:
            assert choice["start_ns"] == chat["start_ns"]
            assert choice["end_ns"] <= chat["end_ns"]
            _assert_tiled(choice, children[choice["span_id"]])
        if not choices and children[chat["span_id"]]:
            _assert_tiled(chat, children[chat["span_id"]])


def _assert_tiled(parent: dict[str, Any], tiles: list[dict[str, Any]]) -> None:
    assert tiles, parent["name"]
    assert tiles[0]["start_ns"] == parent["start_ns"]
    assert tiles[-1]["end_ns"] == parent["end_ns"]
    for left, right in itertools.pairwise(tiles):
        assert left["end_ns"] == right["start_ns"], (left, right)


def prove_completeness(appliance: ApplianceProcess, sink: OtlpSink, count: int) -> None:
    half = count // 2
    first = threading.Thread(target=load, args=(appliance, half))
    first.start()
    operate(appliance)
    first.join()
    assert_every_message_has_its_spans(appliance, sink)

    second = threading.Thread(target=load, args=(appliance, count - half))
    second.start()
    kill_engine(appliance)
    second.join()
    assert_every_message_has_its_spans(appliance, sink)
    assert any(was_refused(span) for _, span in sink.spans)

    traces = stored(appliance)
    assert len(traces) >= min(count, 1000)
    for trace in traces:
        assert_tree(trace)
        assert_tiles(trace)
    outcomes = Counter(trace["request"]["state"] for trace in traces)
    assert {"finished", "aborted", "rejected"} <= outcomes.keys(), outcomes
    assert sum(trace["complete"] for trace in traces) >= 0.9 * len(traces)


def test_200_mixed_requests_two_gateways_two_engines_and_a_kill(
    appliance: ApplianceProcess, sink: OtlpSink
):
    prove_completeness(appliance, sink, 200)


@pytest.mark.prove
@pytest.mark.timeout(600)
def test_1000_mixed_requests(appliance: ApplianceProcess, sink: OtlpSink):
    prove_completeness(appliance, sink, 1000)
