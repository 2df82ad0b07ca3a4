"""Cron: when a tick is due, which ticks were missed, and that one process starts a tick; the tests set the time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from reshard_server.db.conversions import conversions
from reshard_server.db.schedules import runs as schedule_runs
from reshard_server.errors.problems import ProblemError
from reshard_server.schedules.cron import check_cron, last_tick, next_tick, ticks
from reshard_server.schedules.loop import run_now

from tests.server.schedules.bench import Bench, write_step
from tests.server.schedules.nightly import NIGHT, NIGHTLY

DAY = 86400.0


def test_ticks_are_found_in_utc() -> None:
    assert next_tick("0 3 * * *", NIGHT - 1) == NIGHT
    assert next_tick("0 3 * * *", NIGHT) == NIGHT + DAY
    assert last_tick("0 3 * * *", NIGHT) == NIGHT
    assert last_tick("0 3 * * *", NIGHT - 0.5) == NIGHT - DAY


@pytest.mark.parametrize(
    ("late", "catch_up", "run", "missed"),
    [
        (0, False, NIGHT, None),
        (299, False, NIGHT, None),
        (301, False, None, (NIGHT, NIGHT)),
        (301, True, NIGHT, None),
        (3 * DAY + 301, False, None, (NIGHT, NIGHT + 3 * DAY)),
        (3 * DAY + 301, True, NIGHT + 3 * DAY, (NIGHT, NIGHT + 2 * DAY)),
        (3 * DAY + 10, False, NIGHT + 3 * DAY, (NIGHT, NIGHT + 2 * DAY)),
    ],
)
def test_what_is_done_about_a_late_look(
    late: float, catch_up: bool, run: float | None, missed: tuple[float, float] | None
) -> None:
    found = ticks("0 3 * * *", NIGHT, NIGHT + late, catch_up=catch_up)
    assert (found.run, found.missed) == (run, missed)
    assert found.following == next_tick("0 3 * * *", NIGHT + late)


@pytest.mark.parametrize(
    ("cron", "why"),
    [
        ("* * * * * *", "found 6 fields"),
        ("@daily yes", "found 2 fields"),
        ("60 * * * *", "[60 * * * *] is not acceptable, out of range"),
        ("0 0 30 2 *", "failed to find next date"),
        ("R * * * *", "times by chance (R, H) are not supported"),
        ("no at all in cron", "is not acceptable"),
    ],
)
def test_what_is_no_cron_expression(cron: str, why: str) -> None:
    with pytest.raises(ProblemError) as caught:
        check_cron(cron, NIGHT)
    assert caught.value.detail.startswith(f"{cron!r} is not a cron expression that is ever due: ")
    assert why in caught.value.detail
    assert caught.value.field == "/when/cron"
    assert caught.value.detail.endswith(str(caught.value.remedy))


def test_a_tick_starts_one_conversion(bench: Bench) -> None:
    bench.put(now=NIGHT - 100, **NIGHTLY)
    bench.tick(NIGHT - 1)
    assert bench.runs() == []
    bench.tick(NIGHT + 1)
    bench.tick(NIGHT + 2)
    [run] = bench.runs()
    assert (run.key, run.outcome, run.state) == ("2026-11-21T03:00:00Z", "started", "queued")
    found = bench.conversion(run.key)
    assert found.request.model_dump()["target"] == "data/out/s-20261121T030000Z"
    assert (found.schedule, found.created_by) == ("s", "ann")
    assert found.request.labels == {"schedule": "s"}
    assert bench.wakes == 1
    assert bench.get().next_at == NIGHT + DAY
    assert bench.get().revision == 1


def test_the_newest_step_is_looked_up_at_each_run(bench: Bench) -> None:
    when = {**NIGHTLY["when"], "step": "latest"}
    run = bench.data / "run"
    run.mkdir()
    bench.put(now=NIGHT - 100, **{**NIGHTLY, "when": when})
    bench.tick(NIGHT)
    for night, step in ((1, 1), (2, 20)):
        write_step(run, step)
        bench.tick(NIGHT + night * DAY)
        bench.end(f"2026-11-{21 + night}T03:00:00Z")
    write_step(run, 3)
    asked = run_now(bench.one, bench.get(), None, NIGHT + 3 * DAY)
    first, *others = bench.runs()
    assert first.outcome == "refused"
    assert first.detail is not None
    assert first.detail.startswith("data/run contains no committed step")
    assert [bench.conversion(one.key).request.source for one in others] == [
        "data/run/1", "data/run/20", "data/run/20",
    ]  # fmt: skip
    assert others[-1].key == asked.key


def test_what_was_missed_is_said_and_not_run(bench: Bench) -> None:
    bench.put(now=NIGHT - 100, **NIGHTLY)
    bench.tick(NIGHT + 2 * DAY + 4000)
    [run] = bench.runs()
    assert (run.key, run.outcome) == ("2026-11-21T03:00:00Z", "skipped")
    assert run.detail == (
        "no server ran when this was due: 2026-11-21T03:00:00Z to 2026-11-23T03:00:00Z"
    )
    assert bench.wakes == 0
    assert bench.get().next_at == NIGHT + 3 * DAY


def test_one_run_catches_up(bench: Bench) -> None:
    bench.put(now=NIGHT - 100, **{**NIGHTLY, "when": {**NIGHTLY["when"], "catch_up": True}})
    bench.tick(NIGHT + 2 * DAY + 4000)
    assert bench.told() == {"2026-11-21T03:00:00Z": "skipped", "2026-11-23T03:00:00Z": "started"}


def test_a_run_that_has_not_ended_is_not_overtaken(bench: Bench) -> None:
    bench.put(now=NIGHT - 100, **NIGHTLY)
    bench.tick(NIGHT)
    bench.tick(NIGHT + DAY)
    assert bench.runs()[-1].detail == "the conversion of the previous run has not ended"
    bench.end("2026-11-21T03:00:00Z")
    bench.tick(NIGHT + 2 * DAY)
    assert [r.outcome for r in bench.runs()] == ["started", "skipped", "started"]


def test_a_full_queue_refuses_a_tick(bench: Bench) -> None:
    bench.put(now=NIGHT - 100, **NIGHTLY)
    bench.tick(NIGHT, bench.process("one", queued_per_token=1))
    bench.put("t", now=NIGHT - 100, **NIGHTLY)
    bench.tick(NIGHT, bench.process("one", queued_per_token=1))
    [run] = bench.runs("t")
    assert (run.outcome, run.detail) == (
        "refused",
        "1 conversions of the token 'ann' wait already, the most that may wait",
    )


def test_a_tick_that_another_clock_ran_already_is_passed(bench: Bench) -> None:
    bench.put(now=NIGHT - 100, **NIGHTLY)
    bench.tick(NIGHT)
    bench.put(now=NIGHT - 1, **NIGHTLY)  # by a replica whose clock is behind
    bench.end("2026-11-21T03:00:00Z")
    bench.tick(NIGHT)
    assert len(bench.runs()) == 1
    assert bench.get().next_at == NIGHT + DAY


def test_of_many_processes_one_starts_a_tick(any_bench: Bench) -> None:
    bench = any_bench
    bench.put(now=NIGHT - 100, **NIGHTLY)
    processes = [bench.process(f"p{i}") for i in range(4)]
    gate = threading.Barrier(len(processes))

    def look(process: Any, day: int) -> None:
        gate.wait(60)
        bench.tick(NIGHT + day * DAY, process)

    for day in range(10):
        with ThreadPoolExecutor(len(processes)) as threads:
            list(threads.map(look, processes, [day] * len(processes)))
        bench.end(max(run.key for run in bench.runs()))  # the clock that orders runs may step back
    assert [r.outcome for r in bench.runs()] == ["started"] * 10
    assert bench.wakes == 10
    found = conversions.page(bench.db, conversions.Filters(schedule="s"), 100)
    assert len(found.conversions) == 10


def test_pages_of_the_history(bench: Bench) -> None:
    bench.put(now=NIGHT - 100, **NIGHTLY)
    for day in range(5):
        bench.tick(NIGHT + day * DAY)
        bench.end(bench.runs()[-1].key)
    keys, token = [], None
    while True:
        page = schedule_runs.page(bench.db, "s", 2, token)
        keys += [run.key for run in page.runs]
        token = page.next_page_token
        if token is None:
            break
    assert keys == [f"2026-11-{21 + day}T03:00:00Z" for day in range(5)][::-1]


@pytest.mark.parametrize("how", ["carry", "compute", "check", "none"])
def test_the_conversion_of_a_tick_has_the_identity_of_its_schedule(bench: Bench, how: str) -> None:
    (target,) = NIGHTLY["targets"]
    bench.put(now=NIGHT - 100, **{**NIGHTLY, "targets": [{**target, "identity": how}]})
    bench.tick(NIGHT + 1)
    [run] = bench.runs()
    assert bench.conversion(run.key).request.model_dump()["identity"] == how
