"""Handing out: within the budget, the first error stops, nothing outlives it."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.engine.executor import QUEUED_PER_WORKER, run_tasks
from reshard.errors import ReshardError


class Gauge:
    """Adds up what runs at the same time."""

    def __init__(self):
        self.now = self.peak = self.begun = 0
        self._lock = threading.Lock()

    def work(self, nbytes):
        with self._lock:
            self.begun += 1
            self.now += nbytes
            self.peak = max(self.peak, self.now)
        time.sleep(0.0005)
        with self._lock:
            self.now -= nbytes
        return nbytes


def threads():
    """Those of the executor: the process keeps its threads for requests to buckets."""
    found = {t for t in threading.enumerate() if t.name.startswith("reshard")}
    return {t for t in found if not t.name.startswith("reshard.requests")}


@given(st.lists(st.integers(0, 100), max_size=20), st.integers(1, 4))
def test_every_task_runs_once_and_within_the_budget(needs, workers):
    gauge = Gauge()
    done = list(run_tasks(needs, gauge.work, lambda n: n, 100, workers))
    assert sorted(done) == sorted(needs)
    assert gauge.peak <= 100
    assert not threads()


def test_a_task_above_the_budget_runs_alone():
    gauge = Gauge()
    assert sorted(run_tasks([60, 500, 60], gauge.work, lambda n: n, 100, 4)) == [60, 60, 500]
    assert gauge.peak == 500


def test_several_run_at_once():
    barrier = threading.Barrier(3, timeout=60)
    done = list(run_tasks(range(3), lambda _: barrier.wait() >= 0, lambda _: 1, 3, 3))
    assert done == [True] * 3


def test_tasks_are_made_only_as_they_are_handed_out():
    made = []

    def tasks():
        for number in range(1000):
            made.append(number)
            yield number

    results = run_tasks(tasks(), lambda n: n, lambda _: 1, 100, 2)
    next(results)
    assert len(made) <= 2 * 2 * QUEUED_PER_WORKER + 1
    results.close()


def failing(number):
    if number == 3:
        raise ValueError("task 3")
    return number


def test_the_first_error_stops_everything():
    started = []

    def work(number):
        started.append(number)
        if number > 3:
            time.sleep(0.05)  # the other thread may be held up on its way to tell of the error
        return failing(number)

    with pytest.raises(ValueError, match="task 3"):
        list(run_tasks(range(1000), work, lambda _: 1, 100, 2))
    assert len(started) < 20
    assert not threads()


def test_waiting_tasks_are_cancelled_and_running_ones_are_waited_for():
    began, ended = [], []
    release = threading.Event()

    def work(number):
        if number == 0:
            raise ValueError("at once")
        began.append(number)
        release.wait(60)
        ended.append(number)

    threading.Timer(0.2, release.set).start()
    with pytest.raises(ValueError, match="at once"):
        list(run_tasks(range(4), work, lambda _: 1, 100, 2))
    assert sorted(ended) == sorted(began)
    assert len(began) < 4


def test_a_caller_that_stops_leaves_no_thread():
    results = run_tasks(range(100), lambda n: n, lambda _: 1, 10, 3)
    next(results)
    results.close()
    assert not threads()


def test_an_executor_that_is_given_is_used_and_left_open():
    with ThreadPoolExecutor(2, "theirs") as executor:
        names = list(
            run_tasks(
                range(5), lambda _: threading.current_thread().name, lambda _: 1, 5, 2, executor
            )
        )
        assert all(name.startswith("theirs") for name in names)
        assert executor.submit(failing, 1).result() == 1


def test_processes_do_as_well_as_threads():
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        assert sorted(run_tasks([1, 2], failing, lambda _: 1, 5, 1, executor)) == [1, 2]
        with pytest.raises(ValueError, match="task 3"):
            list(run_tasks([2, 3], failing, lambda _: 1, 5, 1, executor))


def test_a_worker_that_is_killed_is_an_error_of_ours():
    with (
        ProcessPoolExecutor(1, get_context("spawn")) as executor,
        pytest.raises(ReshardError, match=r"the executor ended .* workers\), and run again"),
    ):
        list(run_tasks([9, 9, 9], os._exit, lambda _: 1, 5, 1, executor))


def test_an_executor_that_was_shut_down_is_an_error_of_ours():
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(ReshardError, match=r"ended before its tasks did .*after shutdown"):
        list(run_tasks([1], failing, lambda _: 1, 5, 1, executor))


def test_tasks_that_somebody_cancels_are_an_error_of_ours():
    began, release = threading.Event(), threading.Event()

    def work(_):
        began.set()
        return release.wait(60)

    def cancel():
        began.wait(60)
        executor.shutdown(wait=False, cancel_futures=True)
        release.set()

    with ThreadPoolExecutor(1) as executor:
        threading.Thread(target=cancel).start()
        with pytest.raises(ReshardError, match="the executor ended before its tasks did"):
            list(run_tasks([1, 2], work, lambda _: 1, 5, 1, executor))


def test_memory_that_the_system_refuses_is_an_error_of_ours():
    def work(_):
        raise MemoryError("Unable to allocate 8 EiB")

    with pytest.raises(
        ReshardError, match=r"refused memory to a task \(Unable to allocate 8 EiB\)"
    ):
        list(run_tasks([1], work, lambda _: 1, 5, 1))


def test_a_thread_that_an_interrupt_hid_from_its_pool_is_waited_for(monkeypatch):
    """Ctrl-C comes after the thread was started and before the pool noted it."""
    start, began, ended = threading.Thread.start, threading.Event(), threading.Event()

    def work(_):
        began.set()
        time.sleep(0.2)
        ended.set()

    def interrupted(thread):
        start(thread)
        began.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(run_tasks([1], work, lambda _: 1, 10, 1))
    assert ended.is_set()


def test_tasks_that_have_not_started_in_such_a_thread_never_start(monkeypatch):
    start, may_go_on, done = threading.Thread.start, threading.Event(), []

    def late(thread):
        run = thread.run
        thread.run = lambda: (may_go_on.wait(), run())
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", late)
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        list(run_tasks([1], done.append, lambda _: 1, 10, 1))
    may_go_on.set()
    for thread in set(threading.enumerate()) - before:
        thread.join()
    assert done == []
