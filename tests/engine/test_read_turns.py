"""Turns of reading: no more than half of the tasks read at once, and none waits for ever."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from reshard.engine.read_turns import TURN_BYTES, ReadTurns, reading, turns_between

BUCKET, FOLDER = "s3://bucket/run/1", "/data/run/1"


@pytest.mark.parametrize("tasks", [1, 2, 5, 8])
def test_half_of_the_tasks_read_while_the_others_write(tasks: int) -> None:
    turns, most, now, lock = ReadTurns(), 0, 0, threading.Lock()
    begun = threading.Barrier(tasks, timeout=60)

    def task(_: int) -> int:
        nonlocal most, now
        with turns.task():
            begun.wait()  # all are in flight
            with turns.reading():
                with lock:
                    now += 1
                    most = max(most, now)
                with lock:
                    now -= 1
            begun.wait()
        return 1

    with ThreadPoolExecutor(tasks) as threads:
        assert sum(threads.map(task, range(tasks))) == tasks
    assert 1 <= most <= (tasks + 1) // 2


def test_a_task_that_fails_while_it_reads_gives_its_turn_back() -> None:
    turns = ReadTurns()
    with pytest.raises(OSError, match="lost"), turns.task(), turns.reading():
        raise OSError("lost")
    with turns.task(), turns.reading():
        pass


def test_turns_are_for_much_that_goes_from_a_bucket_to_a_bucket() -> None:
    for nbytes, roots, takes in [
        (TURN_BYTES, [BUCKET], True),
        (TURN_BYTES, [FOLDER, BUCKET], True),
        (TURN_BYTES - 1, [BUCKET], False),
        (TURN_BYTES, [FOLDER], False),
    ]:
        with turns_between(nbytes, roots) as turns, reading(turns):
            assert (turns is not None) == takes
