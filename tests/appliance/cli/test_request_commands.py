"""`requests`, `abort`, `trace`."""

import httpx
import pytest

from appliance.cli.admin_client import AdminClient
from appliance.cli.exits import CliError
from appliance.supervisor.admin.schemas import Operation, ProfileRow, Trace
from tests.appliance.cli.conftest import Appliance, Run
from tests.appliance.supervisor.admin.in_memory import HEX, REQUEST_ID, trace


def test_requests_are_listed_and_filtered(run: Run, appliance: Appliance):
    assert REQUEST_ID in run("requests").out
    assert run("requests", "-o", "json").json[0]["id"] == REQUEST_ID
    none = run("requests", "--state", "ended")
    assert REQUEST_ID not in none.out
    assert "no requests" in none.err


def test_abort_is_confirmed_then_a_conflict_then_unknown(run: Run, appliance: Appliance):
    first = run("abort", f"chatcmpl-{HEX}")

    assert (first.code, first.out) == (0, f"{REQUEST_ID}: aborted after 3 tokens\n")
    assert run("abort", REQUEST_ID).code == 5
    assert run("abort", "req-unknown").code == 1


def test_trace_in_json_is_the_list_of_spans(run: Run, appliance: Appliance):
    spans = run("trace", f"chatcmpl-{HEX}", "-o", "json").json

    assert list(spans[0])[:8] == [
        "name",
        "kind",
        "process",
        "start_ns",
        "end_ns",
        "span_id",
        "parent_id",
        "attributes",
    ]


def test_trace_draws_under_its_headline(run: Run, appliance: Appliance):
    result = run("trace", REQUEST_ID)

    assert result.code == 0
    assert result.out.splitlines()[0] == "TTFT 1 ms"
    assert "\x1b" not in result.out


def test_an_unknown_trace_is_a_failure(run: Run, appliance: Appliance):
    result = run("trace", "req-unknown")

    assert result.code == 1
    assert "there is no request" in result.err
    assert "`quarterdeck traces` lists what is stored" in result.err


def test_a_state_that_does_not_exist_is_a_usage_error_that_names_those_that_do(
    run: Run, appliance: Appliance
):
    result = run("requests", "--state", "blah")

    assert (result.code, result.out) == (2, "")
    assert "'live', 'ended', 'held'" in result.err


def test_the_trace_of_a_running_request_says_that_it_runs(run: Run, appliance: Appliance):
    assert "it is running" in run("trace", REQUEST_ID).err


def test_what_an_old_trace_lacks_is_not_waited_for(run: Run, appliance: Appliance):
    asked: list[str] = []
    found = trace()
    old = found.request.model_copy(update={"ended_at": found.request.received_at})

    async def answer(request_id: str, *, content: bool = False) -> Trace:
        asked.append(request_id)
        return found.model_copy(update={"request": old, "complete": False})

    appliance.hub.trace = answer
    assert "or were lost" in run("trace", REQUEST_ID).err
    assert asked == [REQUEST_ID]


def test_a_profile_of_no_engine_hints_at_the_engines():
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(404, json={"title": "no", "status": 404, "code": "not_found"})

    admin = AdminClient(
        httpx.Client(base_url="http://x", transport=httpx.MockTransport(answer)), "x"
    )

    with pytest.raises(CliError) as new:
        admin.call("POST", "/profiles", Operation, json={"engine": "e9"})
    assert new.value.hint == "`quarterdeck ps` lists the engines."
    with pytest.raises(CliError) as old:
        admin.call("GET", "/profiles/prof-9", ProfileRow)
    assert "profile list" in (old.value.hint or "")
