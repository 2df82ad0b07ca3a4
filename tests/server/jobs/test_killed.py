"""SIGKILL of the server and of its children, at several moments, with the embedded database."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from reshard_server.db.conversions import conversions

import reshard
from tests.server.forked import STEP_BACK
from tests.server.jobs.world import World, children_of, is_gone, templates_of
from tests.server.waiting import until


def test_a_killed_server_goes_on_where_it_was(world: World) -> None:
    first = world.start()
    job = world.held()
    [child] = first.children()
    first.kill()
    assert is_gone(child)
    assert world.get(job).state == "running"
    world.start()
    assert world.resumed(job).attempts == 2


def test_a_job_accepted_without_a_server_is_carried_out(world: World) -> None:
    job = world.convert()
    world.start()
    assert world.ended(job).state == "succeeded"
    assert world.is_equal()


def test_what_was_to_be_cancelled_is_cancelled_after_the_server_died(world: World) -> None:
    first = world.start()
    job = world.held()
    first.kill()
    conversions.request_cancel(world.db, job)
    assert world.get(job).state == "cancelling"
    world.start()
    found = world.ended(job)
    assert found.state == "cancelled"
    assert found.ended_at is not None
    assert not (world.data / "out").exists()


def test_a_killed_child_is_started_again_and_goes_on(world: World) -> None:
    server = world.start()
    job = world.held()
    [child] = server.children()
    os.kill(child, signal.SIGKILL)
    assert world.resumed(job).attempts == 2


def test_a_killed_template_is_replaced_and_the_conversion_goes_on(world: World) -> None:
    server = world.start()
    job = world.held()
    [child], [template] = server.children(), templates_of(server.pid)
    os.kill(template, signal.SIGKILL)
    assert is_gone(child)
    assert world.resumed(job).attempts == 2
    [another] = templates_of(server.pid)
    assert another != template
    assert server.end() == 0
    assert is_gone(another)


def test_a_child_that_dies_again_and_again_is_given_up(world: World) -> None:
    server = world.start(attempts=2)
    job = world.held()
    for attempt in (1, 2):
        world.wait_for(job, lambda c, n=attempt: c.attempts == n and bool(server.children()))
        [child] = server.children()
        os.kill(child, signal.SIGKILL)
        assert is_gone(child)
    found = world.ended(job)
    assert found.state == "failed"
    assert found.error is not None
    assert found.error["type"] == "urn:reshard:problem:worker-died"
    moved_bytes = found.error["progress"]["moved_bytes"]
    assert found.error["detail"].startswith(
        f"the process of the conversion was killed by SIGKILL in attempt 2 of 2, after {moved_bytes} of "
    )
    assert found.error["remedy"] == "retry the conversion to resume it"

    conversions.requeue(world.db, job)
    world.resumed(job)


def test_a_child_dies_with_a_server_that_is_killed_while_it_is_frozen(world: World) -> None:
    server = world.start()
    world.held()
    [child] = children_of(server.pid)
    server.signal(signal.SIGSTOP)
    server.kill()
    assert is_gone(child)


def test_a_child_steps_back_for_its_server(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the server's session, since Linux may share the processor among sessions first."""
    monkeypatch.setenv(STEP_BACK, "1")
    server = world.start()
    world.held()
    [child] = server.children()
    assert os.getsid(child) == os.getsid(server.pid)
    assert os.getpgid(child) == child
    assert os.getpriority(os.PRIO_PROCESS, child) > os.getpriority(os.PRIO_PROCESS, server.pid)


def test_a_server_killed_between_publishing_and_recording_tells_the_digests(world: World) -> None:
    first = world.start(
        lease_seconds=300, waits={"reshard_server.db.database.BUSY_MILLISECONDS": 200}
    )
    job = world.held()
    with (
        world.db.connect() as connection
    ):  # a writer that hangs, so that the end cannot be recorded
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        world.let_go()
        until(lambda: (world.data / "out").exists())
        first.kill()
        connection.rollback()
    assert world.get(job).state == "running"
    world.start()
    found = world.ended(job)
    assert (found.state, found.attempts) == ("succeeded", 2)
    assert found.result is not None
    [report] = found.result
    assert report["already_done"]
    source = reshard.inspect(world.data / "source").tensors
    assert {t["target"]: t["target_digest"] for t in report["tensors"]} == {
        name: t.digest for name, t in source.items()
    }
    assert all(t.digest for t in source.values())
    assert report["nbytes"] == sum(t.spec.nbytes for t in source.values())
    assert world.is_equal()


def test_only_one_server_works_on_a_state_folder(world: World) -> None:
    world.start()
    with pytest.raises(AssertionError, match=r"another server \(process \d+\) works on the state"):
        world.start()


def test_nothing_of_the_environment_reaches_the_child(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESHARD_LOG_LEVEL", "info")
    server = world.start()
    world.held()
    [child] = server.children()
    names = Path(f"/proc/{child}/environ").read_bytes()
    assert b"PATH=" in names
    assert b"RESHARD_" not in names
