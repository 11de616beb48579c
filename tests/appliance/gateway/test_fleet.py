"""Which engine a request goes to: a pure choice."""

from pathlib import Path

from appliance.control_link.messages import EngineRoute, FleetState, Limits
from appliance.gateway.fleet import Asleep, Dispatch, Fleet, Hold, Unavailable, choose
from engine.client.balance import prefix_hashes
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


def test_a_prompt_goes_where_its_beginning_went_before_unless_that_engine_has_more_to_do():
    fleet = Fleet()
    routes = (engine("e0", "ready"), engine("e1", "ready"), engine("e2", "ready"))
    fleet.apply(
        FleetState(
            sequence=1,
            engines=routes,
            keys=(),
            limits=Limits(max_queued=1, requests_per_minute=1, tokens_per_minute=1, hold_s=1),
            on_asleep="wake",
            draining=False,
            auth_required=False,
        )
    )
    talk = prefix_hashes(range(1000))
    fleet.note_sent(routes[1], talk)
    name = routes[0].served_names[0]

    assert fleet.choose(name, talk) == Dispatch(routes[1])
    assert fleet.choose(name, prefix_hashes(range(2000, 3000))) != Dispatch(routes[1])

    fleet.load["e1"] = 20
    assert fleet.choose(name, talk) != Dispatch(routes[1])

    fleet.load["e1"] = 0
    fleet.mark_dead("e1", 1)
    assert fleet.choose(name, talk) != Dispatch(routes[1])
