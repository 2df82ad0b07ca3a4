"""Killed with SIGKILL at chosen points and run again: the same bytes as an undisturbed run, nothing done twice."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

import reshard
from reshard.errors import ReshardError
from reshard.storage.local.staging import staging_for
from tests.campaigns import rarely, singly
from tests.checkpoint_files import files_of, files_without_times
from tests.robustness.crash.cases import CASES, ENDINGS, make_tree
from tests.robustness.crash.interrupted import journal_tasks, same_result
from tests.robustness.crash.killing import Point, run_killed

APPEND = "reshard.storage.local.transaction:LocalTransaction.append"
LINE = "reshard.storage.checked_lines:write_all"
POINTS = [
    Point(APPEND, "before", 1),
    Point(APPEND, "after", 1),
    Point(APPEND, "before", 4),
    Point(APPEND, "after", 6),
    Point(LINE, "torn", 1),
    Point(LINE, "torn", 5),
    Point("reshard.conversion.prove:check_sources", "after"),
    Point("reshard.conversion.convert:finish_target", "after"),
    Point("reshard.storage.local.publishing:_rename", "before"),
    Point("reshard.storage.local.publishing:_rename", "after"),
    Point("reshard.storage.local.transaction:dissolve", "before"),
]

CHOSEN = (POINTS[3], POINTS[5], POINTS[7])
"""For the cases; the others do not depend on it."""


@pytest.fixture(scope="module")
def undisturbed(sources, tmp_path_factory):
    """The result of each case, made once by a run that nothing disturbs."""
    root, made = tmp_path_factory.mktemp("undisturbed"), {}

    def result(name: str) -> Path:
        if name not in made:
            made[name] = root / f"{name}{ENDINGS.get(name, '')}"
            reshard.convert(sources[CASES[name].source], made[name], **CASES[name].options)
        return made[name]

    return result


@pytest.mark.parametrize("name", CASES)
def test_the_cases_are_what_they_are_called(name, sources, tmp_path):
    case = CASES[name]
    options = {k: v for k, v in case.options.items() if k != "check"}
    target = tmp_path / f"t{ENDINGS.get(name, '')}"
    planned = reshard.plan(sources[case.source], target, **options)
    assert {(t.target, t.strategy) for t in planned.tensors} >= case.strategies
    assert planned.tasks >= 6


OTHERS = [name for name in CASES if name != "weave"]
KILLS = [*singly(["weave"], POINTS), *singly(OTHERS, CHOSEN)]


@pytest.mark.parametrize(("name", "point"), KILLS)
def test_killed_and_run_again(name, point, sources, undisturbed, tmp_path):
    case, target = CASES[name], tmp_path / f"t{ENDINGS.get(name, '')}"
    source = sources[case.source]
    assert run_killed(point, source, target, **case.options) == -9
    unfinished = staging_for(target)
    assert unfinished.folder.exists()
    is_published = bool(files_of(target))
    tasks = journal_tasks(target)
    report = reshard.convert(source, target, **case.options)
    same_result(target, undisturbed(name), packed=name == "ocdbt")
    assert report.already_done == is_published
    if is_published:
        recorded = {n: t.digest for n, t in reshard.inspect(target).tensors.items()}
        assert {t.target: t.target_digest for t in report.tensors} == recorded
    else:
        assert report.resumed_bytes == sum(task.moved_bytes for task in tasks)
        assert all(t.source_digest == t.target_digest or t.cast for t in report.tensors)
    beside = {"checkpoint"} if case.options.get("to") == "tensorflow" else set()
    assert {p.name.partition(".")[0] for p in tmp_path.iterdir()} == {"t"} | beside


@pytest.mark.parametrize("name", rarely(["scatter", "zstd", "copy", "weave", "cast"], 3))
def test_finished_chunks_are_not_written_again(name, sources, tmp_path):
    case, target = CASES[name], tmp_path / "t"
    source = sources[case.source]
    assert run_killed(Point(APPEND, "after", 6), source, target, **case.options) == -9
    before = _whole_chunks(source, target, case)
    assert before
    reshard.convert(source, target, **case.options)
    assert {file: (target / file).stat().st_mtime_ns for file in before} == before


def _whole_chunks(source, target, case):
    """Time of change of each chunk that the journal calls closed, found by name and index."""
    options = {k: v for k, v in case.options.items() if k != "check"}
    names = [t.target for t in reshard.plan(source, target, **options).tensors]
    root, found = staging_for(target).root, {}
    for task in journal_tasks(target):
        for index, _, _, stored_bytes, _ in task.chunks:
            if stored_bytes is not None:
                joined = [f"c/{'/'.join(map(str, index))}", f"c.{'.'.join(map(str, index))}"]
                (file,) = [
                    f for key in joined if (root / (f := f"{names[task.tensor]}/{key}")).exists()
                ]
                found[file] = (root / file).stat().st_mtime_ns
    return found


def test_killed_again_and_again(sources, undisturbed, tmp_path):
    case, target = CASES["scatter"], tmp_path / "t"
    # Not at the journal: a run that goes on first writes there what it keeps.
    point, recorded = Point("reshard.engine.books:Books.add", "after", 4), [0]
    while run_killed(point, sources["raw"], target, **case.options) == -9:
        recorded.append(len(journal_tasks(target)))
        assert recorded[-1] > recorded[-2], "a run that was killed gained nothing"
    assert len(recorded) > 3
    same_result(target, undisturbed("scatter"), packed=False)


@pytest.mark.parametrize("count", [1, 7, 30])
def test_killed_within_a_chunk(count, sources, undisturbed, tmp_path):
    case, target = CASES["scatter"], tmp_path / "t"
    point = Point("reshard.engine.write.chunk_files:write_all", "torn", count)
    assert run_killed(point, sources["raw"], target, **case.options) == -9
    reshard.convert(sources["raw"], target, **case.options)
    same_result(target, undisturbed("scatter"), packed=False)


def test_killed_while_the_old_target_is_exchanged(sources, tmp_path):
    """The old target then lies where the output was: its chunks have the names and sizes of the new ones."""
    case, target = CASES["scatter"], tmp_path / "t"
    other = _other_values(tmp_path)
    reshard.convert(other, target, **case.options)
    point = Point("reshard.storage.local.publishing:_rename", "after")
    options = {**case.options, "overwrite": True}
    assert run_killed(point, sources["raw"], target, **options) == -9
    assert staging_for(target).root.exists()
    assert reshard.verify(sources["raw"], target).differences == 0
    report = reshard.convert(sources["raw"], target, **options)
    assert report.resumed_bytes == 0
    assert reshard.verify(sources["raw"], target).differences == 0


def _other_values(folder: Path) -> Path:
    from tests.orbax_trees import save_pytree

    tree = make_tree()
    tree["rows"] = tree["rows"] + 1
    return save_pytree(folder / "other", tree, use_ocdbt=False, use_compression=False)


def test_stock_orbax_takes_nothing_of_it_for_a_checkpoint(sources, tmp_path):
    target = tmp_path / "run" / "7"
    tmp_path.joinpath("run").mkdir()
    assert run_killed(Point(APPEND, "after", 6), sources["raw"], target) == -9
    unfinished = staging_for(target)
    for path in (unfinished.folder, unfinished.root):
        with (
            pytest.raises((ValueError, FileNotFoundError, KeyError)),
            ocp.StandardCheckpointer() as c,
        ):
            c.restore(path)
        with pytest.raises(ReshardError):
            reshard.inspect(path)
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        assert manager.all_steps() == []
        assert manager.save(3, args=ocp.args.StandardSave({"w": np.zeros(3)}))
        manager.wait_until_finished()
    reshard.convert(sources["raw"], target)
    assert reshard.verify(sources["raw"], target).differences == 0


@pytest.mark.parametrize("root", ["checkpoint", ""])
def test_a_path_in_the_staging_folder_is_refused_by_name(root, sources, tmp_path):
    """Even where everything but the rename was done."""
    target = tmp_path / "t"
    point = Point("reshard.storage.local.publishing:_rename", "before")
    assert run_killed(point, sources["raw"], target) == -9
    path = staging_for(target).folder / root
    for call in (reshard.inspect, reshard.verify):
        with pytest.raises(ReshardError, match=r"is unfinished output of reshard.*run the same"):
            call(path)


@pytest.mark.parametrize("name", rarely(["weave", "one", "ranks"]))
def test_random_moments(name, sources, undisturbed, tmp_path):
    """Kills that no point was chosen for: at whichever system call of a thread comes after a while."""
    case, source = CASES[name], sources[CASES[name].source]
    chance = np.random.default_rng(int.from_bytes(os.urandom(4), "little"))
    for count in map(int, chance.integers(1, 200 if name == "weave" else 60, 4)):
        target = tmp_path / str(count)
        run_killed(Point("os:pwrite", "before", count), source, target, **case.options)
        reshard.convert(source, target, **case.options)
        assert files_without_times(target) == files_without_times(undisturbed(name)), (
            f"killed at write {count}"
        )
