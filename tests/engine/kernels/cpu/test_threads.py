"""The pool of threads: each item once, in every region, however many threads there are."""

import contextlib
import ctypes
import gc
import os
import signal
import sys
import time
from ctypes import c_int32, c_int64, c_void_p

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels.cpu import library as library_module
from engine.kernels.cpu.library import NoLibraryError, Pool, library

MOST_THREADS = 1024
every_size = pytest.mark.parametrize("threads", [1, 2, 3, 8])


def count(pool: Pool, items: int, regions: int) -> int:
    """Return the nanoseconds of all regions; negative: some item was not run once in each."""
    counts = np.zeros(max(items, 1), dtype=np.int32)
    function = library()["qd_op_pool_count"]
    function.argtypes, function.restype = [c_void_p, c_int32, c_int32, c_void_p], c_int64
    return function(pool.handle, items, regions, counts.ctypes.data)


def total(pool: Pool, items: int) -> tuple[int, list[int]]:
    """Return the sum of all items' numbers, and how many items each thread took."""
    by_thread = (c_int64 * pool.num_threads)()
    function = library()["qd_op_pool_sum"]
    function.argtypes, function.restype = [c_void_p, c_int32, c_void_p], c_int64
    return function(pool.handle, items, by_thread), list(by_thread)


def others_go_on(pool: Pool, items: int, held: int, *, in_order: bool) -> bool:
    """Return whether all items are done while the thread of one waits for the others."""
    function = library()["qd_op_pool_hold"]
    function.argtypes = [c_void_p, c_int32, c_int32, c_int32, c_int32]
    function.restype = c_int32
    patience_s = 30
    return bool(function(pool.handle, items, held, in_order, patience_s))


@every_size
@given(items=st.integers(0, 300), regions=st.integers(1, 40))
@settings(max_examples=15, deadline=None)
def test_every_item_runs_once_in_every_region(threads, items, regions):
    with Pool(threads) as pool:
        assert count(pool, items, regions) >= 0


@every_size
def test_many_short_regions_lose_no_item(threads):
    with Pool(threads) as pool:
        assert count(pool, 17, 500 if threads > 2 else 5000) >= 0


@every_size
def test_items_are_shared_among_the_threads_of_the_pool_alone(threads):
    items = 10_000
    with Pool(threads) as pool:
        found, by_thread = total(pool, items)

    assert found == items * (items - 1) // 2
    assert sum(by_thread) == items


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("held", [0, 1, 49, 99])
def test_a_thread_that_is_held_up_delays_its_own_item_alone(threads, held, in_order):
    with Pool(threads) as pool:
        assert others_go_on(pool, 100, held, in_order=in_order)


def test_pools_come_and_go():
    for round_ in range(100):
        with Pool(1 + round_ % 8) as pool:
            if round_ % 3:
                assert count(pool, round_, 3) >= 0


def test_pools_live_beside_each_other():
    pools = [Pool(threads) for threads in (1, 2, 3)]
    try:
        for _ in range(20):
            for pool in pools:
                assert count(pool, 13, 5) >= 0
    finally:
        for pool in pools:
            pool.close()


@pytest.mark.parametrize("threads", [0, -1, MOST_THREADS + 1])
def test_numbers_of_threads_that_make_no_sense_are_refused(threads):
    assert library().qd_pool_create(threads) is None


def test_threads_without_work_use_no_processor():
    with Pool(8) as pool:
        count(pool, 100, 10)
        time.sleep(0.05)  # threads stay awake for a moment
        before_s = time.process_time()
        time.sleep(0.5)
        used_s = time.process_time() - before_s

    assert used_s < 0.01


def test_a_process_may_fork_while_threads_sleep_or_wait():
    with Pool(3) as pool:
        count(pool, 50, 20)
        child = os.fork()
        if child == 0:
            os._exit(7)
        _, status = os.waitpid(child, 0)
        assert count(pool, 50, 20) >= 0

    assert os.waitstatus_to_exitcode(status) == 7


def test_destroying_no_pool_is_harmless():
    destroy = library().qd_pool_destroy
    assert destroy(ctypes.c_void_p(None)) is None


def test_a_forked_process_ends_though_it_has_a_pool_without_threads():
    with Pool(3) as pool:
        count(pool, 50, 20)
        time.sleep(0.05)  # all sleep
        child = os.fork()
        if child == 0:
            pool.close()
            os._exit(7)
        assert exit_code(child, patience_s=10) == 7


def exit_code(child: int, patience_s: float) -> int | None:
    """Return the exit code of a process; None: it had to be killed."""
    end_s = time.monotonic() + patience_s
    while time.monotonic() < end_s:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def test_a_pool_that_could_not_be_made_is_collected_in_silence(monkeypatch):
    def missing() -> None:
        raise NoLibraryError("it was not built")

    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    monkeypatch.setattr(library_module, "library", missing)
    pool = Pool.__new__(Pool)
    with contextlib.suppress(NoLibraryError):
        pool.__init__(2)
    del pool
    gc.collect()

    assert not said
