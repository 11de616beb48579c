"""The supervisor's threads give way; what somebody chose stays."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from appliance.supervisor.scheduling import give_way, under

NO_PRIORITY = os.sched_param(0)


T = TypeVar("T")


def in_a_thread(work: Callable[[], T]) -> T:
    """Policies are those of a thread: leave the tests' own alone."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def policy() -> int:
    return os.sched_getscheduler(0)


def test_a_thread_that_gives_way_and_those_that_it_starts_preempt_nobody():
    def work() -> tuple[int | None, int, int]:
        return give_way(), policy(), in_a_thread(policy)

    assert in_a_thread(work) == (os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_BATCH)
    assert policy() == os.SCHED_OTHER


@pytest.mark.parametrize("chosen", [os.SCHED_BATCH, os.SCHED_IDLE])
def test_a_policy_that_somebody_chose_stays_for_children_too(chosen: int):
    def work() -> tuple[int | None, int]:
        os.sched_setscheduler(0, chosen, NO_PRIORITY)
        return give_way(), policy()

    assert in_a_thread(work) == (None, chosen)


def test_children_are_started_under_the_policy_given():
    def work() -> list[int]:
        children = give_way()
        with under(children):
            inside = policy()
        with under(None):
            unchanged = policy()
        with pytest.raises(KeyError), under(children):
            raise KeyError
        return [inside, unchanged, policy()]

    assert in_a_thread(work) == [os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_BATCH]


def test_a_sandbox_that_refuses_the_call_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)

    assert give_way() is None
    with under(os.SCHED_BATCH):
        assert policy() == os.SCHED_OTHER
