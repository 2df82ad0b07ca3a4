"""Two servers on one PostgreSQL: one killed, frozen, frozen with its child; none may do harm."""

from __future__ import annotations

import os
import signal
import time

import pytest
from reshard_server.schemas.conversion import Conversion

from tests.server.by_state import of_states
from tests.server.jobs.world import Replica, World, is_gone

LEASE = {"lease_seconds": 5}
"""Not the least: a process that a busy machine holds up for some seconds still renews it."""


def worker_and_idle(world: World) -> tuple[Replica, Replica]:
    """The replica that carries the conversion out, and the other one."""
    first, second = world.replicas
    return (first, second) if first.children() else (second, first)


def test_a_killed_replicas_jobs_are_taken_over(shared_world: World) -> None:
    shared_world.start(**LEASE)
    shared_world.start(**LEASE)
    job = shared_world.held()
    worker, idle = worker_and_idle(shared_world)
    worker.kill()
    shared_world.wait_for(job, lambda c: c.attempts == 2)
    shared_world.wait_for(job, lambda _: bool(idle.children()))
    shared_world.resumed(job)


@pytest.mark.campaign
def test_a_frozen_replica_does_no_harm(shared_world: World) -> None:
    """Its child ends with its lease: the other replica resumes the work."""
    shared_world.start(**LEASE)
    shared_world.start(**LEASE)
    job = shared_world.held()
    frozen, _ = worker_and_idle(shared_world)
    frozen.signal(signal.SIGSTOP)
    shared_world.let_go()
    found = shared_world.ended(job)
    assert found.state == "succeeded", found.error
    assert found.attempts == 2
    told = found.model_dump()
    frozen.signal(signal.SIGCONT)
    shared_world.wait_for(job, lambda _: not frozen.children())
    time.sleep(1)
    assert shared_world.get(job).model_dump() == told
    assert shared_world.is_equal()

    other = next(r for r in shared_world.replicas if r is not frozen)
    other.end()
    again = shared_world.convert("again")  # what thawed works as before
    assert shared_world.ended(again).state == "succeeded"


@pytest.mark.campaign
def test_a_replica_frozen_with_its_child_does_no_harm(shared_world: World) -> None:
    """The child keeps the target locked until the thawed replica, which lost the conversion, ends it."""
    shared_world.start(**LEASE)
    shared_world.start(**LEASE)
    job = shared_world.held()
    frozen, other = worker_and_idle(shared_world)
    [child] = frozen.children()
    os.kill(child, signal.SIGSTOP)
    frozen.signal(signal.SIGSTOP)
    shared_world.wait_for(job, lambda c: c.attempts == 2)
    deadline = time.monotonic() + 300
    while "waiting for the target" not in other.log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert not shared_world.get(job).done
    shared_world.let_go()
    frozen.signal(signal.SIGCONT)
    assert is_gone(child)
    found = shared_world.ended(job)
    assert found.state == "succeeded", found.error
    assert found.attempts == 2
    assert shared_world.is_equal()


def test_a_replica_that_ends_hands_its_jobs_over_at_once(shared_world: World) -> None:
    shared_world.start()
    shared_world.start()
    job = shared_world.held()
    worker, _ = worker_and_idle(shared_world)
    assert worker.end() == 0
    shared_world.let_go()
    found = shared_world.ended(job)
    assert found.state == "succeeded", found.error
    assert shared_world.is_equal()


def test_limits_hold_over_all_replicas(shared_world: World) -> None:
    options = {"running": 2, "running_per_token": 1}
    shared_world.start(**options)
    shared_world.start(**options)
    jobs = [shared_world.convert(f"out{i}", token="ann" if i < 3 else "bob") for i in range(5)]
    most = {"ann": 0, "bob": 0}
    found: list[Conversion] = []
    while not found or not all(c.done for c in found):
        found = [shared_world.get(job) for job in jobs]
        running = of_states(shared_world.db, ["running"])
        for token in most:
            now = sum(c.created_by == token for c in running)
            most[token] = max(most[token], now)
        time.sleep(0.02)
    assert most == {"ann": 1, "bob": 1}
    assert {c.state for c in found} == {"succeeded"}
    assert {c.attempts for c in found} == {1}
