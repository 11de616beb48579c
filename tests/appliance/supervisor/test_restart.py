"""When an engine that died may start again."""

import pytest

from appliance.supervisor.restart import RestartPolicy


def policy(**changes: float) -> RestartPolicy:
    return RestartPolicy(random=lambda: 1.0, **changes)  # type: ignore[arg-type]


def test_the_wait_doubles_up_to_the_maximum():
    patient = policy(max_deaths=100, max_delay_s=30.0)

    waits = [patient.died(now_s=float(second)) for second in range(8)]

    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_jitter_takes_at_most_half_of_the_wait():
    eager = RestartPolicy(random=lambda: 0.0)

    assert eager.died(0.0) == pytest.approx(0.25)


def test_the_fifth_death_in_a_row_is_the_last():
    strict = policy()

    verdicts = [strict.died(float(second)) for second in range(5)]

    assert [wait is None for wait in verdicts] == [False, False, False, False, True]


def test_a_minute_ready_and_a_real_token_end_the_row():
    forgiving = policy()
    forgiving.died(0.0)
    forgiving.died(1.0)
    forgiving.ready(10.0)
    forgiving.made_token()

    assert forgiving.died(70.0) == 0.5
    assert forgiving.deaths == 1


def test_a_minute_ready_without_a_token_does_not():
    forgiving = policy()
    forgiving.died(0.0)
    forgiving.ready(10.0)

    assert forgiving.died(1000.0) == 1.0


def test_a_token_without_a_minute_does_not():
    forgiving = policy()
    forgiving.died(0.0)
    forgiving.ready(10.0)
    forgiving.ready(60.0)  # a second "ready" does not move the first
    forgiving.made_token()

    assert forgiving.died(69.9) == 1.0


def test_what_one_epoch_earned_does_not_count_for_the_next():
    forgiving = policy()
    forgiving.ready(0.0)
    forgiving.made_token()
    forgiving.died(100.0)

    assert forgiving.died(300.0) == 1.0


def test_an_operator_begins_a_new_row():
    strict = policy()
    for second in range(4):
        strict.died(float(second))

    strict.forgive()

    assert strict.died(5.0) == 0.5
