"""A schedule keeps up with its training run: looks in time, several steps at once where targets differ, else one after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from reshard_server.errors.problems import ProblemError
from reshard_server.schedules import clean_up, loop
from reshard_server.schedules.loop import ScheduleLoop, run_now

from tests.server.claimed import claimed
from tests.server.schedules.bench import STEPS, Bench, write_step
from tests.server.waiting import until

DEFAULT: dict[str, Any] = {"directory": "data/run"}
NEWEST: dict[str, Any] = {"targets": [{"target": "data/out/newest", "overwrite": True}]}


@contextmanager
def running(bench: Bench) -> Iterator[None]:
    """The loop as a server runs it."""
    made = ScheduleLoop(bench.one)
    made.launch()
    try:
        yield
    finally:
        made.close()


def pause(bench: Bench, now: float) -> float:
    """The seconds from a look to the next."""
    bench.tick(now)
    found = bench.get().next_at
    assert found is not None
    return round(found - now, 1)


def test_looks_follow_the_training_run(any_bench: Bench) -> None:
    bench = any_bench
    (bench.data / "run").mkdir()
    stored = bench.put(when=DEFAULT)
    assert pause(bench, stored.updated_at) == 1
    assert pause(bench, stored.updated_at + 70) == 7
    assert pause(bench, stored.updated_at + 3600) == 10
    write_step(bench.data / "run", 1)
    bench.tick(stored.updated_at + 7200)
    [run] = bench.runs()
    since = run.at.timestamp()
    assert pause(bench, since + 8000) == 10
    bench.put(when=DEFAULT | {"poll_seconds": 3})
    assert pause(bench, since + 9000) == 3


def test_after_a_step_the_next_look_is_soon(bench: Bench, run: Path) -> None:
    stored = bench.put(when=DEFAULT, now=0)
    time.sleep(0.01)
    write_step(run, 1)
    bench.tick(stored.updated_at + 1)
    step = bench.runs()[0].at.timestamp()
    assert pause(bench, step + 5) == 1
    assert pause(bench, step + 50) == 5


def test_steps_run_at_once_and_the_highest_is_kept(bench: Bench, run: Path) -> None:
    """They end in another order than they began."""
    bench.put(keep=1)
    for step in (1, 2, 3):
        write_step(run, step)
        bench.tick()
    assert [bench.conversion(str(step)).state for step in (1, 2, 3)] == ["queued"] * 3
    for step in (3, 1, 2):
        bench.end(str(step))
        bench.settle()
    assert [p.name for p in (bench.data / "out").iterdir()] == ["3"]


def test_one_target_for_all_steps_is_written_by_one_at_a_time(any_bench: Bench) -> None:
    bench = any_bench
    (bench.data / "run").mkdir()
    bench.put(**NEWEST)
    for step in (1, 2, 3):
        write_step(bench.data / "run", step)
    other = bench.process("other")
    for step in ("1", "2", "3"):
        bench.tick()
        bench.tick(process=other)
        assert list(bench.told()) == ["1", "2", "3"][: int(step)]
        bench.end(step)
        bench.tick(process=other)
        assert list(bench.told())[-1] == step  # its end is settled first
        bench.settle()
    bench.tick()
    assert list(bench.told().values()) == ["started"] * 3


def test_a_step_that_is_asked_for_waits_its_turn_too(bench: Bench, run: Path) -> None:
    bench.put(**NEWEST)
    for step in (1, 2):
        write_step(run, step)
    bench.tick()
    with pytest.raises(ProblemError) as caught:
        run_now(bench.one, bench.get(), 2, bench.now)
    assert caught.value.detail == (
        "the schedule 's' converts one step at a time, and is converting another one now; wait until some have ended, or cancel some"
    )
    assert bench.told() == {"1": "started"}
    assert len(bench.held()) == 1


def test_steps_of_one_second_have_different_times(bench: Bench, run: Path) -> None:
    bench.put(targets=[{"target": "data/out/{time}"}])
    for step in (1, 2, 3):
        write_step(run, step)
        bench.tick(4e9 + step / 10)
        bench.end(str(step))
        bench.settle()
    assert sorted(p.name for p in (bench.data / "out").iterdir()) == [
        "20961002T070640Z",
        "20961002T070641Z",
        "20961002T070642Z",
    ]


def test_the_newest_only_makes_no_backlog(bench: Bench, run: Path) -> None:
    """Conversions are slower than the training run."""
    bench.put(when={**STEPS["when"], "newest_only": True})
    for step in (1, 2, 3):
        write_step(run, step)
        bench.tick()
    assert bench.told() == {"1": "started", "2": "skipped"}
    claimed(bench.db, bench.conversion("1").id)
    bench.tick()
    assert bench.told() == {"1": "started", "2": "skipped", "3": "started"}


def test_a_slow_directory_delays_no_other_schedule(
    bench: Bench, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, poll = threading.Event(), loop.poll

    def slow(scheduling: Any, stored: Any, *rest: Any) -> None:
        if stored.name == "slow":
            gate.wait(60)
        poll(scheduling, stored, *rest)

    monkeypatch.setattr(loop, "poll", slow)
    for name in ("slow", "quick"):
        bench.put(name, targets=[{"target": "data/{name}/{step}"}])
    write_step(run, 1)
    with running(bench):
        until(lambda: bench.told("quick") == {"1": "started"})
        write_step(run, 2)
        until(lambda: bench.told("quick") == {"1": "started", "2": "started"})
        assert bench.told("slow") == {}
        gate.set()
        until(lambda: bench.told("slow") == {"1": "started", "2": "started"})


def test_the_next_step_does_not_wait_for_removals(
    bench: Bench, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schedule looks once a day, so that only the end of a conversion makes it look."""
    gate, removed = threading.Event(), threading.Event()

    def slow(*_: Any) -> None:
        removed.set()
        gate.wait(60)

    monkeypatch.setattr(clean_up, "remove_old", slow)
    bench.put(**NEWEST, keep=1, when=DEFAULT | {"poll_seconds": 86400}, now=0)
    for step in (1, 2):
        write_step(run, step)
    with running(bench):
        until(lambda: bench.told() == {"1": "started"})
        bench.end("1")
        until(lambda: bench.told() == {"1": "started", "2": "started"})
        until(removed.is_set)
        gate.set()
