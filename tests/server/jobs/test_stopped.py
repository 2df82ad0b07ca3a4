"""Conversions that are cancelled, retried, refused, or stopped by a server that ends in good order."""

from __future__ import annotations

from reshard_server.db.conversions import conversions

from tests.server.jobs.world import World, is_gone


def test_a_cancelled_conversion_stops_and_a_retry_goes_on(world: World) -> None:
    server = world.start()
    job = world.held()
    [child] = server.children()
    stopping = conversions.request_cancel(world.db, job)
    assert stopping is not None
    assert stopping.state == "cancelling"
    assert world.ended(job).state == "cancelled"
    assert is_gone(child)
    assert not (world.data / "out").exists()
    assert (world.data / ".out.reshard-partial").is_dir()  # for the retry

    conversions.requeue(world.db, job)
    world.resumed(job)
    assert not (world.data / ".out.reshard-partial").exists()


def test_a_server_that_ends_hands_back_and_the_next_goes_on(world: World) -> None:
    first = world.start()
    job = world.held()
    [child] = first.children()
    assert first.end() == 0
    assert is_gone(child)
    assert world.get(job).state == "queued"
    world.start()
    world.resumed(job)


def test_a_job_that_asked_to_start_over_does_so_once(world: World) -> None:
    """Only what others left is thrown away, not what its own first attempt did."""
    first = world.start()
    job = world.held(restart=True)
    first.kill()
    world.start()
    world.resumed(job)


def test_other_settings_after_a_restart_lose_no_job(world: World) -> None:
    """If a smaller max_memory changes the plan, finished work cannot be used, and the conversion starts over."""
    first = world.start(max_memory=1 << 30)
    job = world.held()
    first.kill()
    world.let_go()
    world.start(max_memory=16 << 20)
    assert world.ended(job).state == "succeeded"
    assert world.is_equal()


def test_refusals_are_told_in_the_clients_words(small_world: World) -> None:
    small_world.start()
    (small_world.data / "full").mkdir()
    (small_world.data / "full" / "file").touch()
    taken = small_world.ended(small_world.convert("full"))
    assert taken.state == "failed"
    assert taken.attempts == 1
    assert taken.error is not None
    assert taken.error["type"] == "urn:reshard:problem:target-exists"
    assert taken.error["detail"].startswith("the target 'data/full' exists already")
    unmatched = small_world.ended(small_world.convert(select=["nothing"]))
    assert unmatched.error is not None
    assert unmatched.error["type"] == "urn:reshard:problem:plan"
    unstored = small_world.ended(small_world.convert(layout="serving"))
    assert unstored.error is not None
    assert unstored.error["detail"] == (
        "the layout 'serving' is not stored; store it, or give the layout's content"
    )


def test_a_target_that_another_conversion_writes_is_refused(world: World) -> None:
    world.start()
    first = world.held()
    second = world.ended(world.convert())
    assert second.state == "failed"
    assert second.error is not None
    assert "is writing 'data/out' now; wait for it to end" in second.error["detail"]
    world.let_go()
    assert world.ended(first).state == "succeeded"
    assert world.is_equal()
