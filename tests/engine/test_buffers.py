"""Buffers: taken from one allocation, reused, never more than allowed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.engine.buffers import ALIGNMENT, Arena, ArenaPool
from tests.fresh_process import run_fresh


@given(st.lists(st.integers(0, 500), max_size=8))
def test_what_is_taken_is_aligned_and_never_shared(sizes):
    arena = Arena(sum(sizes) + ALIGNMENT * len(sizes))
    taken = [arena.take(n) for n in sizes]
    for number, piece in enumerate(taken):
        piece[:] = number
        assert piece.ctypes.data % ALIGNMENT == 0
    assert all((piece == n).all() and len(piece) == sizes[n] for n, piece in enumerate(taken))


def test_taking_too_much_is_refused():
    arena = Arena(100)
    arena.take(60)
    with pytest.raises(MemoryError, match="a task took 114 bytes of an arena of 100"):
        arena.take(50)


def test_a_released_arena_is_used_again_from_its_start():
    pool = ArenaPool(1000, 4)
    first = pool.acquire(100)
    first.take(100)
    pool.release(first)
    again = pool.acquire(90)
    assert again is first
    assert again.take(90).ctypes.data == first.memory.ctypes.data


def test_a_larger_arena_is_lent_unless_it_exceeds_the_share_of_a_worker():
    pool = ArenaPool(1000, 4)
    larger, largest = pool.acquire(250), pool.acquire(500)
    pool.release(largest)
    pool.release(larger)
    assert pool.acquire(100, 50).nbytes == 100
    assert pool.acquire(100, 0) is larger
    assert pool.acquire(100, 0).nbytes == 100


def test_the_smallest_that_is_large_enough_is_lent():
    pool = ArenaPool(1000, 4)
    arenas = [pool.acquire(nbytes) for nbytes in (240, 120, 200)]
    for arena in arenas:
        pool.release(arena)
    assert pool.acquire(110) is arenas[1]
    assert pool.acquire(110) is arenas[2]


def test_a_task_waits_until_its_bytes_fit_the_budget():
    pool = ArenaPool(1000, 4)
    small, beside = pool.acquire(250), pool.acquire(100, 100)
    with ThreadPoolExecutor(1) as thread:
        large = thread.submit(pool.acquire, 700)
        with pytest.raises(TimeoutError):
            large.result(0.05)
        pool.release(small)
        assert large.result(60).nbytes == 700
    pool.release(beside)


def test_a_task_larger_than_everything_runs_alone():
    pool = ArenaPool(1000, 4)
    assert pool.acquire(3000).nbytes == 3000


@given(st.lists(st.integers(1, 400), min_size=1, max_size=40))
def test_what_waits_never_exceeds_the_limit(sizes):
    pool = ArenaPool(1000, 4)
    lent = []
    for number, nbytes in enumerate(sizes):
        while lent and sum(a.nbytes for a in lent) + nbytes + nbytes // 4 > 1000:
            pool.release(lent.pop(number % len(lent)))
        lent.append(pool.acquire(nbytes))
        assert nbytes <= lent[-1].nbytes
        waiting = sum(a.nbytes for a in pool._free)
        assert sum(a.nbytes for a in lent) + waiting <= 1000


def test_free_arenas_are_released_for_the_extra_memory_of_a_task():
    pool = ArenaPool(1000, 4)
    pool.release(pool.acquire(400))
    pool.acquire(100, 700)
    assert pool._free == []


def test_an_arena_that_was_released_is_let_go_where_decoders_need_its_place():
    pool = ArenaPool(1000, 4)
    one, _ = pool.acquire(400), pool.acquire(100, 500)
    pool.release(one)
    assert pool._free == [one]
    assert pool.acquire(350, 0) is one
    pool.release(one)
    assert pool.acquire(350, 50) is not one
    assert pool._free == []


def test_two_tasks_never_share_an_arena():
    pool = ArenaPool(1000, 4)
    one, two = pool.acquire(100), pool.acquire(100)
    assert not np.shares_memory(one.memory, two.memory)


FREED = """
    import json, resource
    import numpy as np
    from reshard.engine.buffers import Arena

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    before = resident()
    for mib in 12, 3, 17, 9, 30, 5, 21:
        arena = Arena(mib << 20)
        arena.memory[:] = 1
        del arena
    print(json.dumps(resident() - before))
"""


def test_memory_of_an_arena_that_is_dropped_is_given_back():
    """malloc keeps up to 64 MiB of it, and a run of tasks of several sizes would take more than it is allowed."""
    assert run_fresh(FREED).printed < 2 << 20


FORKED = """
    import json, os
    from reshard.engine.buffers import MAPPED_BYTES, aligned_empty
    memory = aligned_empty(MAPPED_BYTES)
    memory[:] = 1
    child = os.fork()
    if child == 0:
        memory[:] = 2
        os._exit(0)
    os.waitpid(child, 0)
    print(json.dumps(int(memory.max())))
"""


def test_a_forked_process_does_not_write_into_a_restored_array():
    assert run_fresh(FORKED).printed == 1
