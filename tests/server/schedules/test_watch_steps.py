"""Each new step is found once, linked and queued, by several processes at once, and after some of them died."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from reshard_server.db.conversions import conversions
from reshard_server.errors.problems import ProblemError
from reshard_server.jobs.conversion_job import make_child_request
from reshard_server.schedules.loop import run_now
from reshard_server.schedules.scheduling import Scheduling
from reshard_server.schemas.conversion import SeveralTargets
from reshard_server.worker.wording import Wording

from tests.formats.safetensors.build import sharded
from tests.server.schedules.bench import STEPS, Bench, write_step

SHARD = "model-0000{}-of-00002.safetensors"


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
    bench.end("3")
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


def _resolved(process: Scheduling, conversion: str) -> dict[str, Any]:
    found = conversions.get(process.database, conversion)
    assert found is not None
    return make_child_request(process.database, process.settings, process.roots, found, begun=False)
