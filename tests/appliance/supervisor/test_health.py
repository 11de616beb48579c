"""When a living engine counts as hanging."""

import pytest

from appliance.supervisor.health import HealthLimits, HealthWatch
from appliance.supervisor.lifecycle import EngineState

LIMITS = HealthLimits(hang_s=10.0, start_timeout_s=600.0, transition_s=60.0)


@pytest.fixture
def watch() -> HealthWatch:
    return HealthWatch(LIMITS, now_s=0.0)


def idle(watch: HealthWatch, now_s: float, step: int = 1) -> None:
    watch.ticked(step, "idle", has_work=False, now_s=now_s)


def busy(watch: HealthWatch, now_s: float, step: int) -> None:
    watch.ticked(step, "step", has_work=True, now_s=now_s)


def test_an_idle_engine_that_ticks_is_healthy_for_ever(watch: HealthWatch):
    for second in range(100):
        idle(watch, float(second))

    assert watch.complaint(EngineState.READY, 100.0) is None


@pytest.mark.parametrize("state", [EngineState.READY, EngineState.ASLEEP])
def test_no_tick_for_the_hang_time_is_a_hang(watch: HealthWatch, state: EngineState):
    idle(watch, 5.0)

    assert watch.complaint(state, 15.0) is None
    assert watch.complaint(state, 15.1) == "no tick of its loop for 10.1 s"


def test_work_without_a_step_is_a_hang_although_the_loop_ticks(watch: HealthWatch):
    for second in range(12):
        busy(watch, float(second), step=7)

    complaint = watch.complaint(EngineState.READY, 11.5)
    assert complaint == "work waits and no step was made for 11.5 s"


def test_steps_keep_a_busy_engine_healthy(watch: HealthWatch):
    for second in range(100):
        busy(watch, float(second), step=second)

    assert watch.complaint(EngineState.READY, 100.0) is None


def test_the_time_before_work_came_does_not_count(watch: HealthWatch):
    idle(watch, 0.0)
    for second in range(1, 50):
        idle(watch, float(second))
    busy(watch, 50.0, step=1)
    busy(watch, 51.0, step=1)

    assert watch.complaint(EngineState.READY, 55.0) is None


def test_another_phase_is_progress_too(watch: HealthWatch):
    busy(watch, 0.0, step=1)
    watch.ticked(1, "prefill", has_work=True, now_s=9.0)
    watch.ticked(1, "prefill", has_work=True, now_s=18.0)

    assert watch.complaint(EngineState.READY, 18.5) is None


def test_an_engine_with_slow_steps_gets_twenty_of_them(watch: HealthWatch):
    watch.stepped(10, 20.0)
    watch.stepped(10, 20.0)  # no step since: nothing to learn
    watch.stepped(20, 21.0)
    idle(watch, 0.0)

    assert watch.complaint(EngineState.READY, 39.0) is None
    assert watch.complaint(EngineState.READY, 41.0) is not None


def test_a_start_is_renewed_by_progress(watch: HealthWatch):
    watch.progressed(500.0)
    watch.ticked(0, "weights", has_work=False, now_s=500.0)
    watch.ticked(0, "weights", has_work=False, now_s=1100.0)  # ticks alone do not renew it

    assert watch.complaint(EngineState.STARTING, 1100.0) is None
    assert watch.complaint(EngineState.STARTING, 1101.0) == "no progress of its start for 601.0 s"


@pytest.mark.parametrize("state", [EngineState.WAKING, EngineState.DRAINING])
def test_going_to_sleep_and_waking_have_their_own_budget(watch: HealthWatch, state: EngineState):
    assert watch.complaint(state, 60.0) is None
    assert watch.complaint(state, 60.5) == "no sign of life for 60.5 s"


@pytest.mark.parametrize(
    "state",
    [EngineState.STOPPED, EngineState.BACKOFF, EngineState.CRASH_LOOP, EngineState.FAILED],
)
def test_without_a_process_there_is_nothing_to_hang(watch: HealthWatch, state: EngineState):
    assert watch.complaint(state, 1e9) is None


def test_a_new_state_begins_a_new_budget(watch: HealthWatch):
    watch.entered(100.0)

    assert watch.complaint(EngineState.READY, 109.0) is None
    assert watch.heard_s == 0.0, "it has not said anything"


def test_a_pause_of_the_watcher_is_not_the_engines_fault(watch: HealthWatch):
    watch.excuse(1000.0)

    assert watch.complaint(EngineState.READY, 1005.0) is None
