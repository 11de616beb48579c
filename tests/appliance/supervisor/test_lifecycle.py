"""The life of an engine: which event leads where, and what it makes the supervisor do."""

import pytest

from appliance.supervisor.lifecycle import (
    ALIVE,
    EngineState,
    Intent,
    Lifecycle,
    advance,
)
from appliance.supervisor.lifecycle_events import (
    Backoff,
    BackoffOver,
    BecameReady,
    Died,
    Effect,
    Event,
    HeartbeatMissed,
    Hello,
    Progressed,
    ReplaySleep,
    RestartRequested,
    SleepEnded,
    SleepRequested,
    Spawn,
    Spawned,
    StartRequested,
    StopRequested,
    Terminate,
    WakeEnded,
    WakeRequested,
)

START: tuple[Event, ...] = (StartRequested(), Spawned(1), Hello())
READY: tuple[Event, ...] = (*START, BecameReady())
ASLEEP: tuple[Event, ...] = (*READY, SleepRequested(), SleepEnded(1))
CRASH = Died("SIGKILL", delay_s=0.5)

ALL_EVENTS: tuple[Event, ...] = (
    StartRequested(),
    Spawned(9),
    Hello(),
    Progressed("weights", 1, 2),
    BecameReady(),
    CRASH,
    Died("exit code 1", None),
    Died("exit code 78", 0.5, is_config_error=True),
    HeartbeatMissed("no tick"),
    SleepRequested(),
    SleepEnded(1),
    SleepEnded(0, "busy"),
    WakeRequested(),
    WakeEnded(),
    WakeEnded("no memory"),
    RestartRequested(),
    BackoffOver(),
    StopRequested(),
)


def live(*events: Event) -> tuple[Lifecycle, tuple[Effect, ...]]:
    """Run the events from the beginning; return the life and the effects of the last one."""
    life, effects = Lifecycle(), ()
    for event in events:
        life, effects = advance(life, event)
    return life, effects


def state_after(*events: Event) -> EngineState:
    return live(*events)[0].state


def test_a_start_spawns_and_ends_ready():
    life, effects = live(StartRequested())
    assert (life.state, effects) == (EngineState.STARTING, (Spawn(),))

    life, _ = live(StartRequested(), Spawned(3))
    assert (life.epoch, life.starts, life.restarts, life.phase) == (3, 1, 0, "spawn")

    assert live(*START)[0].phase == "import"

    life, _ = live(*START, Progressed("weights", 5, 10, "bytes"))
    assert (life.phase, life.done, life.total) == ("weights", 5, 10)

    life, effects = live(*READY)
    assert (life.state, life.phase, life.total, effects) == (EngineState.READY, None, 0, ())


def test_sleep_goes_through_draining_and_wake_through_waking():
    assert state_after(*READY, SleepRequested()) is EngineState.DRAINING
    life, _ = live(*ASLEEP)
    assert (life.state, life.sleep_level) == (EngineState.ASLEEP, 1)
    assert state_after(*ASLEEP, WakeRequested()) is EngineState.WAKING
    life, _ = live(*ASLEEP, WakeRequested(), Progressed("weights", 1, 4), WakeEnded())
    assert (life.state, life.sleep_level, life.phase) == (EngineState.READY, 0, None)


def test_a_sleep_that_was_refused_leaves_the_engine_serving():
    life, _ = live(*READY, SleepRequested(), SleepEnded(0, "busy: 3 requests run"))

    assert (life.state, life.sleep_level, life.reason) == (EngineState.READY, 0, None)


def test_a_wake_that_failed_leaves_the_engine_asleep():
    life, _ = live(*ASLEEP, WakeRequested(), WakeEnded("no memory"))

    assert (life.state, life.sleep_level, life.reason) == (EngineState.ASLEEP, 1, "no memory")


def test_a_restarted_engine_that_should_sleep_is_put_back_to_sleep():
    life, effects = live(*START, BecameReady(desired_sleep_level=2))

    assert (life.state, effects) == (EngineState.READY, (ReplaySleep(2),))


def test_a_crash_backs_off_and_starts_again():
    life, effects = live(*READY, CRASH)
    assert (life.state, effects) == (EngineState.BACKOFF, (Backoff(0.5),))
    assert (life.reason, life.last_exit) == ("SIGKILL", "SIGKILL")

    life, effects = live(*READY, CRASH, BackoffOver())
    assert (life.state, effects, life.reason) == (EngineState.STARTING, (Spawn(),), "SIGKILL")

    life, _ = live(*READY, CRASH, BackoffOver(), Spawned(2), Hello(), BecameReady())
    assert (life.epoch, life.restarts, life.reason) == (2, 1, None)
    assert life.last_exit == "SIGKILL"


def test_the_reason_of_a_death_holds_the_last_words():
    life, _ = live(*START, Died("exit code 1", 0.5, detail="no such file"))

    assert life.reason == "exit code 1: no such file"


def test_a_policy_that_gives_up_makes_a_crash_loop():
    life, effects = live(*READY, Died("SIGSEGV", None))

    assert (life.state, effects, life.allowed_actions) == (
        EngineState.CRASH_LOOP,
        (),
        ["restart"],
    )


def test_a_configuration_error_never_loops():
    life, effects = live(*START, Died("exit code 78", 0.5, is_config_error=True))

    assert (life.state, effects) == (EngineState.FAILED, ())


def test_a_configuration_error_is_told_in_its_own_words():
    life, _ = live(*START, Died("exit code 78", None, is_config_error=True, detail="no such file"))

    assert (life.reason, life.last_exit) == ("no such file", "exit code 78: no such file")


def test_a_crash_while_asleep_forgets_the_sleep_of_the_dead_process():
    assert live(*ASLEEP, CRASH)[0].sleep_level == 0


def test_a_hang_is_ended_with_a_stack_dump_and_told_as_the_reason():
    life, effects = live(*READY, HeartbeatMissed("no tick for 11 s"))
    assert (life.state, life.phase, effects) == (
        EngineState.DRAINING,
        "hung",
        (Terminate("hung"),),
    )

    life, effects = live(*READY, HeartbeatMissed("no tick for 11 s"), Died("SIGABRT", 0.5))
    assert (life.state, life.reason) == (
        EngineState.BACKOFF,
        "hung: no tick for 11 s; ended by SIGABRT",
    )


def test_a_hang_is_acted_on_once():
    assert live(*READY, HeartbeatMissed("a"), HeartbeatMissed("b"))[1] == ()
    assert live(*READY, RestartRequested(), HeartbeatMissed("b"))[1] == ()


def test_a_sleep_that_ends_while_the_engine_is_ended_for_hanging_changes_nothing():
    hung = (*READY, SleepRequested(), HeartbeatMissed("no sign of life"))

    assert live(*hung, SleepEnded(1))[0] == live(*hung)[0]


def test_a_restart_ends_the_process_and_spawns_only_after_its_confirmed_death():
    life, effects = live(*READY, RestartRequested())
    assert (life.state, life.intent, effects) == (
        EngineState.DRAINING,
        Intent.RESTART,
        (Terminate("polite"),),
    )
    assert life.allowed_actions == []
    assert live(*READY, RestartRequested(), RestartRequested())[1] == ()

    life, effects = live(*READY, RestartRequested(), Died("exit code 0", None))
    assert (life.state, life.intent, effects) == (EngineState.STARTING, Intent.RUN, (Spawn(),))


@pytest.mark.parametrize(
    "death", [CRASH, Died("SIGSEGV", None), Died("exit code 78", None, is_config_error=True)]
)
def test_a_restart_starts_an_engine_that_is_down(death: Died):
    life, effects = live(*START, death, RestartRequested())

    assert (life.state, effects) == (EngineState.STARTING, (Spawn(),))


def test_a_stop_ends_the_process_for_good():
    life, effects = live(*READY, StopRequested())
    assert (life.state, effects) == (EngineState.DRAINING, (Terminate("polite"),))

    life, effects = live(*READY, StopRequested(), CRASH)
    assert (life.state, effects) == (EngineState.STOPPED, ())
    assert live(*READY, StopRequested(), RestartRequested())[1] == ()


def test_a_stop_overrides_a_restart():
    events = (*READY, RestartRequested(), StopRequested(), Died("exit code 0", None))

    assert state_after(*events) is EngineState.STOPPED


def test_a_stop_of_an_engine_that_is_down_is_done_at_once():
    life, effects = live(*READY, CRASH, StopRequested())

    assert (life.state, effects) == (EngineState.STOPPED, ())
    assert state_after(*READY, CRASH, StopRequested(), BackoffOver()) is EngineState.STOPPED


def test_allowed_actions_follow_the_state():
    assert live(*READY)[0].allowed_actions == ["sleep", "restart"]
    assert live(*ASLEEP)[0].allowed_actions == ["wake", "restart"]
    assert live(*START)[0].allowed_actions == ["restart"]
    assert live(*READY, CRASH)[0].allowed_actions == ["restart"]


REACHABLE = {
    EngineState.STOPPED: (),
    EngineState.STARTING: START,
    EngineState.READY: READY,
    EngineState.DRAINING: (*READY, SleepRequested()),
    EngineState.ASLEEP: ASLEEP,
    EngineState.WAKING: (*ASLEEP, WakeRequested()),
    EngineState.BACKOFF: (*READY, CRASH),
    EngineState.CRASH_LOOP: (*READY, Died("SIGSEGV", None)),
    EngineState.FAILED: (*START, Died("exit code 78", None, is_config_error=True)),
}


@pytest.mark.parametrize("event", ALL_EVENTS, ids=repr)
@pytest.mark.parametrize("state", EngineState)
def test_no_event_in_any_state_breaks_what_must_hold(state: EngineState, event: Event):
    before, _ = live(*REACHABLE[state])
    assert before.state is state

    after, effects = advance(before, event)

    if Spawn() in effects:
        assert not before.is_alive or isinstance(event, Died), "one process at a time"
        assert after.state is EngineState.STARTING
    if any(isinstance(effect, Terminate) for effect in effects):
        assert before.is_alive
        assert after.state is EngineState.DRAINING
    if before.is_alive and after.state not in ALIVE:
        assert isinstance(event, Died), "only a confirmed death ends a process"
    if after.state in (EngineState.ASLEEP, EngineState.WAKING):
        assert after.sleep_level > 0
    if after.state not in (EngineState.ASLEEP, EngineState.WAKING, EngineState.DRAINING):
        assert after.sleep_level == 0
    if after == before:
        assert effects == (), "what changes nothing asks for nothing"
