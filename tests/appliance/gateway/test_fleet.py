"""Which engine a request goes to: a pure choice."""

from pathlib import Path

from appliance.control_link.messages import EngineRoute
from appliance.gateway.fleet import Asleep, Dispatch, Hold, Unavailable, choose
from tests.appliance.gateway.fake_supervisor import a_route


def engine(engine_id: str, state: str, epoch: int = 1) -> EngineRoute:
    return a_route(Path("m"), engine_id, state=state, epoch=epoch)


def test_the_least_loaded_ready_engine_gets_it():
    routes = [engine("e0", "ready"), engine("e1", "ready"), engine("e2", "asleep")]

    assert choose(routes, {"e0": 3, "e1": 1}) == Dispatch(routes[1])


def test_a_starting_engine_is_waited_for_and_no_other_is_woken():
    routes = [engine("e0", "asleep"), engine("e1", "starting")]

    assert choose(routes, {}) == Hold(routes[1])


def test_a_sleeping_engine_is_woken_when_there_is_no_other():
    routes = [engine("e0", "crash_loop"), engine("e1", "asleep")]

    assert choose(routes, {}) == Asleep(routes[1])


def test_what_the_own_sockets_said_counts_more_than_an_older_state():
    routes = [engine("e0", "ready", epoch=3)]

    assert choose(routes, {}, dead={("e0", 3)}) == Hold(routes[0])
    assert choose(routes, {}, asleep={("e0", 3)}) == Hold(routes[0])
    assert choose(routes, {}, dead={("e0", 2)}) == Dispatch(routes[0])


def test_engines_that_do_not_come_back_by_themselves_are_not_waited_for():
    routes = [engine("e0", "failed"), engine("e1", "stopped")]

    assert choose(routes, {}) == Unavailable(routes[0])
    assert choose([], {}) == Unavailable(None)
    assert isinstance(choose([engine("e0", "backoff")], {}), Hold)
