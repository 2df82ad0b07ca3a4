"""Old runs are forgotten; their steps are not taken for new, and nothing is forgotten that is not dealt with."""

from __future__ import annotations

import shutil

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from reshard_server.db.conversions import rows
from reshard_server.db.schedules import runs as forgetting_runs
from reshard_server.db.schedules import schedules
from reshard_server.db.schedules.runs import among, expanded, progressions
from reshard_server.db.tables import SCHEDULE_FORGOTTEN, SCHEDULE_RUNS
from reshard_server.schedules.scheduling import Scheduling

from tests.server.schedules.bench import STEPS, Bench, write_step


@pytest.fixture
def keeps_two(any_bench: Bench) -> Scheduling:
    """A process that keeps two runs of each schedule."""
    return any_bench.process("two", keep_runs=2)


def look(bench: Bench, process: Scheduling) -> None:
    """Looks once at every schedule and at ended runs."""
    bench.tick(process=process)
    bench.settle(process)


def steps(bench: Bench, process: Scheduling, numbers: list[int], *, keep: bool = False) -> None:
    """Steps that a training run saves, one after the other, which are converted, and then deleted."""
    for number in numbers:
        folder = write_step(bench.data / "run", number)
        look(bench, process)
        bench.end(str(number))
        look(bench, process)
        if not keep:
            shutil.rmtree(folder)


def test_the_newest_runs_are_kept_and_no_step_is_new_again(
    any_bench: Bench, keeps_two: Scheduling
) -> None:
    bench = any_bench
    (bench.data / "run").mkdir()
    bench.put()
    steps(bench, keeps_two, [10, 20, 30, 40, 50])
    assert list(bench.told()) == ["30", "40", "50"]  # forgotten when the next one is found
    with bench.db.connect() as connection:
        assert connection.scalar(sa.select(SCHEDULE_FORGOTTEN.c.steps)) == [[10, 20, 10]]
    for back in (10, 20, 15):
        write_step(bench.data / "run", back)
    look(bench, keeps_two)
    assert list(bench.told()) == ["40", "50", "15"]  # 15 was never seen
    assert schedules.delete(bench.db, bench.get())
    with bench.db.connect() as connection:
        assert connection.execute(sa.select(SCHEDULE_FORGOTTEN)).all() == []


def test_a_run_whose_step_is_there_is_kept(any_bench: Bench, keeps_two: Scheduling) -> None:
    bench = any_bench
    (bench.data / "run").mkdir()
    bench.put()
    steps(bench, keeps_two, [1, 2, 3], keep=True)
    steps(bench, keeps_two, [4, 5])
    assert list(bench.told()) == ["1", "2", "3", "4", "5"]


def test_a_run_that_is_not_dealt_with_is_kept(any_bench: Bench, keeps_two: Scheduling) -> None:
    bench = any_bench
    (bench.data / "run").mkdir()
    bench.put()
    for number, end in ((1, None), (2, "failed")):
        folder = write_step(bench.data / "run", number)
        look(bench, keeps_two)
        if end:
            bench.end("2", "failed")
        look(bench, keeps_two)
        shutil.rmtree(folder)
    steps(bench, keeps_two, [3, 4, 5])
    assert list(bench.told()) == ["1", "2", "3", "4", "5"]
    bench.end("1")
    bench.settle(keeps_two)
    rows.remove_ended(bench.db, bench.now + 1e6)  # the failed one cannot be retried any more
    steps(bench, keeps_two, [6])
    assert "1" not in bench.told()
    assert "2" not in bench.told()


def test_runs_by_the_clock_are_forgotten(any_bench: Bench, keeps_two: Scheduling) -> None:
    bench = any_bench
    (bench.data / "a").mkdir()
    when = {"cron": "* * * * *", "source": "data/a"}
    bench.put(when=when, targets=[{"target": "data/out/{time}"}], now=bench.now)
    for minute in range(1, 7):
        bench.tick(bench.now + 60 * minute, keeps_two)
        for run in bench.runs():
            if run.state == "queued":
                bench.end(run.key)
        bench.settle(keeps_two)
    assert len(bench.runs()) <= 3


def test_many_runs_are_forgotten_in_small_transactions(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forgetting_runs, "BATCH", 10)
    rows = [
        {"schedule": "s", "key": str(n), "step": n, "at": float(n), "outcome": "skipped", "settled": 1}
        for n in range(0, 1000, 5)
    ]  # fmt: skip
    with bench.db.begin() as connection:
        connection.execute(SCHEDULE_RUNS.insert(), rows)
    assert forgetting_runs.forget_old(bench.db, "s", 50) == 150
    assert forgetting_runs.forget_old(bench.db, "s", 50) == 0
    assert forgetting_runs.forgotten(bench.db, "s", range(1000)) == set(range(0, 750, 5))


def test_all_runs_are_kept_where_the_setting_says_so(bench: Bench) -> None:
    (bench.data / "run").mkdir()
    bench.put(when={**STEPS["when"]})
    steps(bench, bench.process("all", keep_runs=0), [1, 2, 3])
    assert list(bench.told()) == ["1", "2", "3"]


@given(st.sets(st.integers(0, 200), max_size=60), st.sets(st.integers(0, 200), max_size=20))
def test_progressions_are_the_set(given_steps: set[int], asked: set[int]) -> None:
    found = progressions(given_steps)
    assert expanded(found) == given_steps
    assert among(found, asked) == given_steps & asked


def test_regular_steps_take_little_room() -> None:
    assert progressions(range(1000, 1_000_000, 1000)) == [(1000, 999_000, 1000)]
    assert progressions([1, 5, 6, 7]) == [(1, 1, 1), (5, 7, 1)]
    assert progressions([]) == []
    assert progressions([3, 9]) == [(3, 9, 6)]
