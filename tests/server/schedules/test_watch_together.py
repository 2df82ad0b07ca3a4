"""Several processes find the same new steps: each is converted once, also after some of them died or froze."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from reshard_server.db.conversions import conversions, executors, hard_links
from reshard_server.db.schedules import runs as schedule_runs
from reshard_server.db.tables import EXECUTORS
from reshard_server.schedules import watch_steps as watching
from reshard_server.schedules.scheduling import Scheduling

from tests.server.schedules.bench import STEPS, Bench, write_step
from tests.server.waiting import until


def test_of_many_processes_one_converts_a_step(any_bench: Bench) -> None:
    bench = any_bench
    folder = bench.data / "run"
    folder.mkdir()
    bench.put(when={**STEPS["when"], "poll_seconds": 0.2})
    processes = [bench.process(f"p{i}") for i in range(4)]
    stop = threading.Event()
    errors: list[BaseException] = []

    def look(process: Scheduling) -> None:
        now = 4e9
        try:
            while not stop.is_set():
                bench.tick(now, process)
                bench.settle(process)
                now += 0.1
        except BaseException as error:  # noqa: BLE001 - told below
            errors.append(error)

    threads = [threading.Thread(target=look, args=(p,)) for p in processes]
    for thread in threads:
        thread.start()
    try:
        for step in range(12):
            write_step(folder, step)
        until(lambda: errors or list(bench.told().values()) == ["started"] * 12)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []
    found = conversions.page(bench.db, conversions.Filters(schedule="s"), 100).conversions
    assert sorted(c.request.source for c in found) == sorted(f"data/run/{i}" for i in range(12))
    assert len(bench.held()) == 12
    assert all(hard_links.linked_source(bench.db, c.id) in bench.held() for c in found)


def test_four_processes_at_the_same_step(any_bench: Bench) -> None:
    """Past the poll, which one of them wins: straight at the step's row."""
    bench = any_bench
    folder = bench.data / "run"
    folder.mkdir()
    stored = bench.put()
    processes = [bench.process(f"p{i}") for i in range(4)]
    gate = threading.Barrier(4)

    def claim(process: Scheduling, step: int) -> bool:
        gate.wait(60)
        return bool(schedule_runs.claim(process.database, stored.name, step, process.executor))

    with ThreadPoolExecutor(4) as threads:
        for step in range(20):
            won = list(threads.map(claim, processes, [step] * 4))
            assert sorted(won) == [False, False, False, True]


class DiedError(BaseException):
    """What a test has a process end by."""


@pytest.mark.parametrize("where", ["link_step", "_queued"])
def test_what_a_dead_process_left_is_found(
    any_bench: Bench, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died with a claim, before its hard links were made, or after."""
    bench = any_bench
    (bench.data / "run").mkdir()
    write_step(bench.data / "run", 3)
    bench.put()
    other = bench.process("other")
    with monkeypatch.context() as patch:
        _die_at(patch, where)
        with pytest.raises(DiedError):
            bench.tick()
    assert bench.told() == {"3": "holding"}
    assert len(bench.held()) == (where == "_queued")
    bench.settle(other)
    bench.tick(4e9, other)
    assert bench.told() == {"3": "holding"}  # as long as it may live
    with bench.db.begin() as connection:
        connection.execute(
            EXECUTORS.update().where(EXECUTORS.c.id == "one").values(heartbeat_at=1.0)
        )
    bench.settle(other)
    assert bench.told() == {}
    assert bench.held() == []
    bench.tick(5e9, other)
    assert bench.told() == {"3": "started"}
    assert len(bench.held()) == 1


def test_a_frozen_process_that_thaws_starts_nothing(
    any_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = any_bench
    (bench.data / "run").mkdir()
    write_step(bench.data / "run", 3)
    bench.put()
    other = bench.process("other")
    queued = watching._queued

    def thaw(*args: Any, **more: Any) -> str | None:
        """While it was frozen it was given up, and another converted the step."""
        monkeypatch.setattr(watching, "_queued", queued)
        with bench.db.begin() as connection:
            executor = EXECUTORS.c.id == "one"
            connection.execute(EXECUTORS.update().where(executor).values(heartbeat_at=1.0))
        bench.settle(other)
        bench.tick(5e9, other)
        executors.beat(bench.db, "one")
        return queued(*args, **more)

    monkeypatch.setattr(watching, "_queued", thaw)
    bench.tick(4e9)
    assert bench.told() == {"3": "started"}
    assert bench.wakes == 1
    assert bench.held() == [hard_links.linked_source(bench.db, bench.conversion("3").id)]


def test_a_schedule_that_is_gone_leaves_its_conversions_their_hard_links(
    bench: Bench, run: Path
) -> None:
    from reshard_server.db.schedules import schedules

    write_step(run, 3)
    bench.put()
    bench.tick()
    found = bench.conversion("3")
    assert schedules.delete(bench.db, bench.get())
    bench.settle()
    assert len(bench.held()) == 1
    conversions.request_cancel(bench.db, found.id)
    bench.settle()
    assert bench.held() == []
    with bench.db.connect() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM schedule_holds")).scalar() == 0


def _die_at(patch: pytest.MonkeyPatch, where: str) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise DiedError

    patch.setattr(watching, where, die)
    patch.setattr(watching, "remove_links", lambda _: None)
    patch.setattr(hard_links, "forget", lambda *_: None)
    patch.setattr(schedule_runs, "release", lambda *_: None)
