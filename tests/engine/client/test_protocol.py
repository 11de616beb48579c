"""What holds for every engine client, whatever is between it and its engine."""

from collections.abc import Iterator

import pytest

from engine.client.core_client import EngineDeadError, UtilityCallError, UtilityTimeoutError
from engine.wire.calls import DumpState, Ping, Sleep, Wake
from engine.wire.messages import FinishReason
from tests.engine.client.drivers import KINDS, ROOT, Driver, a_request, driver_of, is_alive

pytestmark = [pytest.mark.process]


@pytest.fixture(scope="module", autouse=True)
def tests_can_be_imported() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        yield


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def shared_driver(kind: str) -> Iterator[Driver]:
    with driver_of(kind) as driver:
        yield driver


@pytest.fixture
def driver(shared_driver: Driver) -> Iterator[Driver]:
    yield shared_driver
    shared_driver.call(Wake())


@pytest.fixture
def own_driver(kind: str) -> Iterator[Driver]:
    """For a test after which it is of no more use."""
    with driver_of(kind) as driver:
        yield driver


def has_tokens(output: object) -> bool:
    return bool(output.new_token_ids)  # type: ignore[attr-defined]


def test_the_tokens_of_many_requests_arrive_in_order_each_at_its_own(driver: Driver):
    for k in range(8):
        driver.add(a_request(f"r{k}", 3 + k))

    for k in range(8):
        tokens, last = driver.finish(f"r{k}")
        assert tokens == driver.expected(3 + k)
        assert last.finish_reason is FinishReason.LENGTH


def test_an_abort_ends_a_request_and_its_last_output_still_arrives(driver: Driver):
    driver.add(a_request("long", 700))
    driver.add(a_request("other", 40))
    driver.outputs_of("long", has_tokens)

    driver.abort("long")

    tokens, last = driver.finish("long")
    assert last.finish_reason is FinishReason.ABORT
    assert len(tokens) < 700
    assert driver.finish("other")[0] == driver.expected(40)


def test_unknown_ids_are_ignored(driver: Driver):
    driver.abort("never-sent", "nor-this")
    driver.forget("never-sent")
    driver.add(a_request("r"))

    assert driver.finish("r")[0] == driver.expected(4)


def test_what_comes_for_a_forgotten_request_is_counted_and_dropped(driver: Driver):
    driver.add(a_request("dropped", 30))
    driver.outputs_of("dropped", has_tokens)
    driver.forget("dropped")
    driver.add(a_request("kept", 60))

    assert driver.finish("kept")[0] == driver.expected(60)
    assert driver.counts.unknown > 0


def test_utility_calls_answer_with_their_own_result_type(driver: Driver):
    report = driver.call(Sleep(level=2, mode="abort"))
    assert report.level == 2

    with pytest.raises(UtilityCallError, match="asleep") as refused:
        driver.call(Ping())
    assert refused.value.code == "invalid"

    assert driver.call(Wake()).canary_ok
    assert driver.call(Ping()).token_id is not None
    assert driver.call(DumpState()).requests == ()


def test_sleeping_with_abort_ends_what_runs(driver: Driver):
    driver.add(a_request("r", 700))
    driver.outputs_of("r", has_tokens)

    driver.call(Sleep(mode="abort"))

    assert driver.finish("r")[1].error.code == "engine_asleep"  # type: ignore[union-attr]


def test_a_call_without_a_reply_in_time_says_so(driver: Driver):
    driver.add(a_request("r", 200))
    driver.outputs_of("r", has_tokens)

    with pytest.raises((UtilityTimeoutError, UtilityCallError)) as late:
        driver.call(Sleep(mode="wait"), 0.05)

    if isinstance(late.value, UtilityCallError):  # in this process: nobody would run it to its end
        assert late.value.code == "invalid"
    driver.abort("r")
    assert driver.finish("r")[1].finish_reason in {FinishReason.ABORT, FinishReason.LENGTH}


def test_the_death_of_an_engine_reaches_those_who_receive_and_those_who_send(own_driver: Driver):
    own_driver.add(a_request("r", 700))
    own_driver.outputs_of("r", has_tokens)

    own_driver.kill_engine()

    with pytest.raises(EngineDeadError, match="e0"):
        own_driver.finish("r")
    with pytest.raises(EngineDeadError):
        own_driver.add(a_request("late"))
    with pytest.raises(EngineDeadError):
        own_driver.call(Ping())


def test_closing_twice_is_closing_once_and_leaves_no_process(own_driver: Driver):
    own_driver.add(a_request("r", 700))
    own_driver.outputs_of("r", has_tokens)
    pids = own_driver.pids

    own_driver.close()
    own_driver.close()

    assert not any(is_alive(pid) for pid in pids)
    with pytest.raises(EngineDeadError, match="closed"):
        own_driver.finish("r")
    with pytest.raises(EngineDeadError):
        own_driver.add(a_request("late"))
