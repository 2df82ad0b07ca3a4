"""Each new step is found once, linked and queued, by several processes at once, and after some of them died."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from reshard_server.db.conversions import conversions, executors, hard_links
from reshard_server.db.schedules import runs as schedule_runs
from reshard_server.db.tables import EXECUTORS
from reshard_server.errors.problems import ProblemError
from reshard_server.jobs.child_request import make_child_request
from reshard_server.schedules import watch_steps as watching
from reshard_server.schedules.run_now import run_now
from reshard_server.schedules.scheduling import Scheduling
from reshard_server.schemas.conversion import SeveralTargets
from reshard_server.worker.wording import Wording

from tests.formats.safetensors.build import sharded
from tests.server.schedules.bench import STEPS, Bench, write_step

SHARD = "model-0000{}-of-00002.safetensors"


@pytest.fixture
def run(bench: Bench) -> Path:
    folder = bench.data / "run"
    folder.mkdir()
    return folder


def test_each_step_is_converted_once(bench: Bench, run: Path) -> None:
    bench.put()
    bench.tick()
    assert bench.runs() == []
    write_step(run, 1)
    (run / "2.orbax-checkpoint-tmp").mkdir()
    bench.tick()
    bench.tick()
    assert bench.told() == {"1": "started"}
    (run / "2.orbax-checkpoint-tmp").rmdir()
    write_step(run, 2)
    bench.tick()
    assert bench.told() == {"1": "started", "2": "started"}
    found = bench.conversion("2")
    assert found.request.model_dump()["target"] == "data/out/2"
    assert found.request.source == "data/run/2"
    assert found.request.labels == {"schedule": "s", "step": "2"}
    assert bench.wakes == 2


def test_a_step_of_safetensors_is_converted_once_it_is_whole(bench: Bench, run: Path) -> None:
    """As transformers' Trainer writes it, in place: first other files, then shards, and the index last."""
    bench.put(when={**STEPS["when"], "step_prefix": "checkpoint"})
    step = run / "checkpoint-500"
    step.mkdir()
    whole = sharded(bench.folder / "whole")
    for file in ("config.json", SHARD.format(1), SHARD.format(2)):
        bench.tick()
        assert bench.told() == {}
        (step / file).write_bytes((whole / file).read_bytes())
    (step / SHARD.format(2)).write_bytes(b"")
    bench.tick()
    assert bench.told() == {}
    for file in (SHARD.format(2), "model.safetensors.index.json"):
        (step / file).write_bytes((whole / file).read_bytes())
    bench.tick()
    assert bench.told() == {"500": "started"}
    assert bench.conversion("500").request.source == "data/run/checkpoint-500"


def test_a_directory_may_come_later(bench: Bench) -> None:
    bench.put()
    bench.tick()
    (bench.data / "run").mkdir()
    write_step(bench.data / "run", 5)
    bench.tick()
    assert bench.told() == {"5": "started"}


def test_missed_steps_are_caught_up_oldest_first(bench: Bench, run: Path) -> None:
    for step in (9, 10, 2):
        write_step(run, step)
    bench.put()
    bench.tick()
    assert [r.key for r in bench.runs()] == ["2", "9", "10"]


def test_every_kth_from_a_first_one(bench: Bench, run: Path) -> None:
    for step in range(13):
        write_step(run, step)
    bench.put(when={**STEPS["when"], "every": 4, "first_step": 3})
    bench.tick()
    assert list(bench.told()) == ["4", "8", "12"]


def test_the_newest_only(bench: Bench, run: Path) -> None:
    for step in (1, 2, 3):
        write_step(run, step)
    bench.put(when={**STEPS["when"], "newest_only": True})
    bench.tick()
    assert bench.told() == {"1": "skipped", "2": "skipped", "3": "started"}
    assert bench.runs()[0].detail == "step 3 is newer, and this schedule converts only the newest"
    write_step(run, 4)
    bench.tick()
    assert bench.told()["4"] == "started"


def test_several_targets_by_template(bench: Bench, run: Path) -> None:
    write_step(run, 3)
    targets = [{"target": "data/{name}/{step}"}, {"target": "data/at-{time}-{step}"}]
    bench.put(targets=targets)
    bench.tick(now=4e9)
    request = bench.conversion("3").request
    assert isinstance(request, SeveralTargets)
    assert [g.target for g in request.targets] == ["data/s/3", "data/at-20961002T070640Z-3"]


def test_a_step_is_read_where_it_is_held(bench: Bench, run: Path) -> None:
    step = write_step(run, 3)
    bench.put()
    bench.tick()
    found = bench.conversion("3")
    [held] = bench.held()
    shutil.rmtree(step)
    document = _resolved(bench.one, found.id)
    assert document["source"] == str(held)
    assert found.request.source == "data/run/3"
    wording = Wording.of(bench.one.settings.roots, found.request, held)
    assert (
        wording.text(f"{held}/state/x and {held}: bad") == "data/run/3/state/x and data/run/3: bad"
    )
    bench.end("3")
    bench.settle()
    assert bench.held() == []
    assert _resolved(bench.one, found.id)["source"] == str(step)


def test_a_step_that_cannot_be_held_is_read_where_it_is(bench: Bench, run: Path) -> None:
    (bench.data / ".reshard-held").write_text("in the way")
    step = write_step(run, 3)
    bench.put()
    bench.tick()
    [seen] = bench.runs()
    assert (seen.outcome, seen.detail) == (
        "started",
        "read without hard links: hard links cannot be made here: File exists",
    )
    assert _resolved(bench.one, bench.conversion("3").id)["source"] == str(step)
    shutil.rmtree(step)
    bench.end("3", "failed")
    bench.settle()
    [seen] = bench.runs()
    assert (seen.outcome, seen.state) == ("gone", "failed")
    assert seen.detail == "it was deleted while it was read, without hard links"


def test_a_step_that_lost_files_is_gone(bench: Bench, run: Path) -> None:
    step = write_step(run, 3)
    for path in [p for p in step.rglob("*") if p.is_file()]:
        path.unlink()
    bench.put()
    bench.tick()
    [seen] = bench.runs()
    assert (seen.outcome, seen.detail) == ("gone", "it is empty: it is being deleted")
    assert (bench.wakes, bench.held()) == (0, [])


def test_a_failed_step_is_seen_and_can_be_run_again(bench: Bench, run: Path) -> None:
    write_step(run, 3)
    bench.put()
    bench.tick()
    first = bench.conversion("3").id
    bench.end("3", "failed")
    bench.settle()
    bench.tick()
    [seen] = bench.runs()
    assert (seen.outcome, seen.state, seen.conversion) == ("started", "failed", first)
    assert bench.held() == []
    again = run_now(bench.one, bench.get(), 3, 4e9)
    assert (again.outcome, again.state, again.key) == ("started", "queued", "3")
    assert again.conversion != first
    assert bench.conversion("3").request.model_dump()["restart"] is True
    assert len(bench.held()) == 1
    with pytest.raises(ProblemError) as caught:
        run_now(bench.one, bench.get(), 3, 4e9)
    assert caught.value.detail == (
        "step 3 of the schedule 's' is being converted now; wait for it to end, or cancel its conversion"
    )
    bench.end("3")
    bench.settle()
    with pytest.raises(ProblemError) as caught:
        run_now(bench.one, bench.get(), None, 4e9)
    assert caught.value.detail == (
        f"step 3 was converted already (conversion {again.conversion}), and no step is converted twice; ask for a "
        "conversion of its own at /v1/conversions"
    )


@pytest.mark.usefixtures("run")
def test_a_step_that_is_not_there_cannot_be_run(bench: Bench) -> None:
    bench.put()
    for step, what in (
        (None, "no committed step that the schedule covers"),
        (8, "no committed step 8"),
    ):
        with pytest.raises(ProblemError) as caught:
            run_now(bench.one, bench.get(), step, 4e9)
        assert caught.value.detail == f"there is {what} in 'data/run' now; name one that is there"
        assert caught.value.kind.status == 404


def test_a_retried_conversion_is_settled_again(bench: Bench, run: Path) -> None:
    write_step(run, 3)
    bench.put(keep=1)
    bench.tick()
    bench.end("3", "failed")
    bench.settle()
    conversions.requeue(bench.db, bench.conversion("3").id)
    bench.end("3")
    bench.settle()
    bench.settle()
    write_step(run, 4)
    bench.tick()
    bench.end("4")
    bench.settle()
    assert not (bench.data / "out" / "3").exists()
    assert (bench.data / "out" / "4").exists()


def test_a_full_queue_leaves_steps_for_later(bench: Bench, run: Path) -> None:
    for step in (1, 2, 3):
        write_step(run, step)
    bench.put()
    small = bench.process("one", queued_per_token=2)
    bench.tick(process=small)
    assert list(bench.told()) == ["1", "2"]
    bench.end("1")
    bench.tick(process=small)
    assert list(bench.told()) == ["1", "2", "3"]


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
    for step in range(12):
        write_step(folder, step)
    _until(lambda: len(bench.told()) == 12 and set(bench.told().values()) == {"started"})
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
    won: list[str] = []
    for step in range(20):
        gate = threading.Barrier(4)

        def claim(process: Scheduling, step: int = step, gate: threading.Barrier = gate) -> None:
            gate.wait()
            if schedule_runs.claim(process.database, stored.name, step, process.executor):
                won.append(process.executor)

        threads = [threading.Thread(target=claim, args=(p,)) for p in processes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(won) == 20


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


def _resolved(process: Scheduling, conversion: str) -> dict[str, Any]:
    found = conversions.get(process.database, conversion)
    assert found is not None
    return make_child_request(process.database, process.settings, process.roots, found, begun=False)


def _die_at(patch: pytest.MonkeyPatch, where: str) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise DiedError

    patch.setattr(watching, where, die)
    patch.setattr(watching, "remove_links", lambda _: None)
    patch.setattr(hard_links, "forget", lambda *_: None)
    patch.setattr(schedule_runs, "release", lambda *_: None)


def _until(holds_true: Any, seconds: float = 30) -> None:
    import time

    deadline = time.monotonic() + seconds
    while not holds_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
