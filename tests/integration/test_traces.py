"""Every message hop is traced: nothing is missing, nothing is there twice."""

import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.appliance_process import ApplianceProcess, wait_until
from tests.integration.otlp_sink import OtlpSink
from tests.integration.streams import Stream, run_all

pytestmark = pytest.mark.process

TRACED = ("AddRequest", "AbortRequests", "EngineOutputs", "UtilityCall", "UtilityReply")


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
        tmp_path_factory.mktemp("t"),
        str(tiny_model_path),
        "--dtype", "float32", "--otlp-endpoint", sink.endpoint, "--drain-s", "5",
    )  # fmt: skip
    yield appliance.start()
    appliance.stop()


def trace_of(appliance: ApplianceProcess, request_id: str) -> list[dict[str, Any]]:
    def complete() -> bool:
        answer = appliance.admin(f"/admin/v1/traces/{request_id}")
        return answer.status_code == 200 and answer.json()["complete"]

    wait_until(complete, 15, f"trace of {request_id}")
    printed = appliance.cli("trace", request_id, "-o", "json")
    assert printed.returncode == 0, printed.stderr
    return json.loads(printed.stdout)


def assert_tree(spans: list[dict[str, Any]]) -> dict[str, Any]:
    """One root, every parent present, children inside the root; return the root."""
    by_id = {span["span_id"]: span for span in spans}
    assert len(by_id) == len(spans)
    roots = [span for span in spans if span["parent_id"] not in by_id]
    assert len(roots) == 1
    return roots[0]


def phases(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [span for span in spans if "quarterdeck.phase" in span["attributes"]]
    return sorted(found, key=lambda span: (span["start_ns"], span["end_ns"]))


@pytest.mark.parametrize("stream", [False, True])
def test_the_phases_tile_the_request_from_its_entry_to_its_last_send(
    appliance: ApplianceProcess, stream: bool
):
    if stream:
        reader = Stream(appliance, appliance.model, "hello there", max_tokens=9, ignore_eos=True)
        run_all([reader])
        request_id = reader.request_id
    else:
        request_id = appliance.chat("hello there", ignore_eos=True).headers["x-request-id"]
    assert request_id is not None

    spans = trace_of(appliance, request_id)

    root = assert_tree(spans)
    assert root["name"] == "POST /v1/chat/completions"
    assert root["kind"] == "server"
    tiles = phases(spans)
    assert [tile["name"] for tile in tiles] == [
        "auth", "admission", "tokenize", "dispatch", "queue", "prefill", "decode", "stream",
    ]  # fmt: skip
    assert tiles[0]["start_ns"] == root["start_ns"]
    assert tiles[-1]["end_ns"] == root["end_ns"]
    for left, right in itertools.pairwise(tiles):
        assert left["end_ns"] == right["start_ns"]
    names = Counter(span["name"] for span in spans)
    assert names["send AddRequest"] == names["process AddRequest"] == 1
    assert names["send EngineOutputs"] == names["process EngineOutputs"] >= 1
    assert {span["process"] for span in spans} == {"gateway-0", "e0"}


def test_an_incoming_traceparent_is_honoured(appliance: ApplianceProcess, sink: OtlpSink):
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    body = {
        "model": appliance.model,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 3,
    }
    headers = {**appliance.headers, "traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}
    answer = httpx.post(
        f"{appliance.url}/v1/chat/completions", json=body, headers=headers, timeout=30
    )

    spans = trace_of(appliance, answer.headers["x-request-id"])

    root = assert_tree(spans)
    assert root["parent_id"] is None, "the caller's span is not ours to show"

    def exported_root() -> Any:
        found = [span for _, span in list(sink.spans) if span.span_id.hex() == root["span_id"]]
        return found[0] if found else None

    assert wait_until(exported_root, 10).parent_span_id.hex() == "00f067aa0ba902b7"
    row = appliance.admin(f"/admin/v1/requests/{answer.headers['x-request-id']}").json()
    assert row["trace_id"] == trace_id


def test_one_id_finds_the_request_everywhere(appliance: ApplianceProcess):
    answer = appliance.chat("hello", max_tokens=3)
    request_id = answer.headers["x-request-id"]
    completion_id = answer.json()["id"]

    trace_of(appliance, request_id)
    for name in (request_id, completion_id):
        assert appliance.admin(f"/admin/v1/requests/{name}").json()["id"] == request_id
        assert appliance.cli("trace", name).returncode == 0
    listing = appliance.cli("requests", "-o", "json")
    assert request_id in {row["id"] for row in json.loads(listing.stdout)}


def mixed_load(appliance: ApplianceProcess) -> None:
    """200 requests: streams, plain ones, aborted ones, several choices; and utility calls."""
    model = appliance.model

    def worker(first: int) -> None:
        for k in range(first, first + 50):
            match k % 5:
                case 0:
                    run_all([Stream(appliance, model, f"m{k}", max_tokens=6, ignore_eos=True)])
                case 1:
                    appliance.chat(f"m{k}", max_tokens=3, n=2, temperature=1)
                case 2:
                    abandon(appliance, model)
                case _:
                    appliance.chat(f"m{k}", max_tokens=4)

    threads = [threading.Thread(target=worker, args=(first,)) for first in range(0, 200, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for command in ("sleep", "wake"):
        assert appliance.cli(command, "e0").returncode == 0


def abandon(appliance: ApplianceProcess, model: str) -> None:
    """Read one frame of a long stream and go away."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "long"}],
        "stream": True,
        "ignore_eos": True,
        "max_tokens": 300,
    }
    url = f"{appliance.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, headers=appliance.headers, timeout=30) as response:
        next(response.iter_lines())


def test_every_message_that_the_sockets_counted_has_both_its_spans(
    appliance: ApplianceProcess, sink: OtlpSink
):
    mixed_load(appliance)

    def counted() -> dict[str, float]:
        return {m: appliance.metric("quarterdeck_messages_sent_total", message=m) for m in TRACED}

    def exported(kind: str) -> dict[str, float]:
        names = Counter(span.name for _, span in list(sink.spans))
        return {m: float(names[f"{kind} {m}"]) for m in TRACED}

    def settled() -> bool:
        counts = counted()
        return counts == exported("send") == exported("process")

    try:
        wait_until(settled, 30)
    except AssertionError:
        assert exported("send") == counted()
        assert exported("process") == counted()
    assert all(count > 0 for count in counted().values()), counted()
    ids = [span.span_id for _, span in sink.spans]
    assert len(set(ids)) == len(ids)
    assert appliance.metric("quarterdeck_records_dropped_total") == 0


def test_the_local_trace_and_the_exported_one_have_the_same_spans(
    appliance: ApplianceProcess, sink: OtlpSink
):
    request_id = appliance.chat("compare", max_tokens=5, ignore_eos=True).headers["x-request-id"]
    local = {span["span_id"]: span for span in trace_of(appliance, request_id)}

    def exported() -> dict[str, Any]:
        return {
            span.span_id.hex(): span for _, span in list(sink.spans) if span.span_id.hex() in local
        }

    wait_until(lambda: len(exported()) == len(local), 15, "all spans arrived")

    for span_id, span in exported().items():
        assert span.name == local[span_id]["name"]
        assert span.start_time_unix_nano == local[span_id]["start_ns"]
        assert span.end_time_unix_nano == local[span_id]["end_ns"]


def test_switching_the_export_in_the_middle_of_streams_leaves_no_span_without_its_parent(
    appliance: ApplianceProcess, sink: OtlpSink
):
    """The last test here: what is not exported meanwhile is missing at the collector."""
    running = [
        Stream(appliance, appliance.model, f"s{k}", max_tokens=400, ignore_eos=True)
        for k in range(4)
    ]
    streams = threading.Thread(target=run_all, args=(running,))
    streams.start()
    while streams.is_alive():
        for on in (False, True):
            answer = appliance.admin("/admin/v1/telemetry", "PATCH", json={"export": on})
            assert answer.status_code == 200
            streams.join(0.1)
    request_id = appliance.chat("the last", max_tokens=3).headers["x-request-id"]
    root = assert_tree(trace_of(appliance, request_id))
    wait_until(lambda: root["span_id"] in {s.span_id.hex() for _, s in list(sink.spans)}, 15)

    def orphans() -> list[str]:
        spans = [span for _, span in list(sink.spans)]
        present = {(span.trace_id, span.span_id) for span in spans}
        assert len(present) == len(spans)
        return [
            span.name
            for span in spans
            if span.parent_span_id
            and (span.trace_id, span.parent_span_id) not in present
            and not span.name.startswith("POST ")  # the caller's span is not ours
        ]

    try:
        wait_until(lambda: not orphans(), 10, "the last steps' own spans")
    except AssertionError:
        assert orphans() == []


def test_starts_and_operations_are_traces_that_one_command_draws(appliance: ApplianceProcess):
    def spans_of(name: str) -> list[dict[str, Any]]:
        printed = appliance.cli("trace", name, "-o", "json")
        return json.loads(printed.stdout) if printed.returncode == 0 else []

    start = wait_until(lambda: spans_of("e0"), 10, "the start of e0")
    root = assert_tree(start)
    assert root["name"] == "engine.start"
    children = [span for span in start if span["parent_id"] == root["span_id"]]
    assert [span["name"] for span in children] == [
        f"start {phase}"
        for phase in ("spawn", "import", "weights", "kv_cache", "kernels", "warm_up")
    ]
    for left, right in itertools.pairwise(children):
        assert left["end_ns"] <= right["start_ns"]

    answer = appliance.admin("/admin/v1/engines/e0/reset-prefix-cache?wait=20", "POST").json()

    def whole_operation() -> list[dict[str, Any]]:
        spans = spans_of(answer["id"])
        messages = {"send UtilityCall", "process UtilityReply"}
        return spans if messages <= {span["name"] for span in spans} else []

    operation = wait_until(whole_operation, 10, "the operation and its call")
    assert assert_tree(operation)["name"] == "operation reset-prefix-cache"
    assert spans_of(answer["trace_id"]) == operation
    assert "ResetPrefixCache" in appliance.cli("trace", answer["id"]).stdout
    assert appliance.cli("trace", "op-0").returncode == 1
