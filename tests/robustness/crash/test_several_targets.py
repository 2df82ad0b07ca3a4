"""A run to several targets, killed or failing, and run again: each target as if it had been made alone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import reshard
from reshard import Target
from reshard.engine import task_stream
from reshard.errors import ResumeError, SourceChangedError, StorageError, TargetBusyError
from reshard.storage.local import transaction as local_transaction
from reshard.storage.local.staging import lock_staging, staging_for
from tests.checkpoint_files import files_without_times
from tests.robustness.crash.cases import COLUMNS, ROWS
from tests.robustness.crash.interrupted import journal_tasks, same_result
from tests.robustness.crash.killing import Point, run_many_killed

APPEND = "reshard.storage.local.transaction:LocalTransaction.append"
LIMITS = {"workers": 2, "max_memory": "64MiB"}
WAYS = {
    "columns": {"layout": COLUMNS, "chunk_bytes": 16384},
    "half": {"layout": ROWS, "cast": [("rows|cols", "bfloat16")], "chunk_bytes": 65536},
    "packed": {"compression": "zstd", "chunk_bytes": 16384, "drop": ["both"]},
}
POINTS = [
    *(Point(APPEND, when, n) for when in ("before", "after") for n in (1, 2, 3, 8, 15)),
    Point("reshard.storage.checked_lines:write_all", "torn", 6),
    Point("reshard.engine.write.chunk_files:write_all", "torn", 9),
    Point("reshard.conversion.convert:begin_or_resume", "after", 2),
    Point("reshard.conversion.convert:finish_target", "after", 1),
    Point("reshard.conversion.convert:finish_target", "after", 3),
    *(
        Point("reshard.storage.local.publishing:_rename", w, n)
        for w in ("before", "after")
        for n in (1, 2, 3)
    ),
    Point("reshard.storage.local.transaction:dissolve", "before", 2),
]


@pytest.fixture(scope="module")
def alone(sources, tmp_path_factory):
    """Each target made by itself, which nothing disturbs."""
    root = tmp_path_factory.mktemp("alone")
    for name, options in WAYS.items():
        reshard.convert(sources["raw"], root / name, **LIMITS, **options)
    return root


@pytest.fixture
def targets(tmp_path):
    return [Target(tmp_path / name, **options) for name, options in WAYS.items()]


def assert_done(targets, alone, folder) -> None:
    for target in targets:
        same_result(Path(target.target), alone / Path(target.target).name, packed=False)
    assert sorted(p.name for p in folder.iterdir()) == sorted(WAYS)


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_killed_and_run_again(point, targets, sources, alone, tmp_path):
    assert run_many_killed(point, sources["raw"], targets, **LIMITS) == -9
    published = [Path(target.target).exists() for target in targets]
    times = {p: p.stat().st_mtime_ns for target in targets for p in Path(target.target).rglob("*")}
    moved = [sum(t.moved_bytes for t in _left(Path(target.target))) for target in targets]
    made = reshard.convert_all(sources["raw"], targets, **LIMITS)
    assert_done(targets, alone, tmp_path)
    assert [report.already_done for report in made.reports] == published
    assert {p: p.stat().st_mtime_ns for p in times} == times
    for report, is_published, before in zip(made.reports, published, moved, strict=True):
        assert is_published or report.resumed_bytes == before
        recorded = {n: t.digest for n, t in reshard.inspect(report.target).tensors.items()}
        assert {t.target: t.target_digest for t in report.tensors} == recorded


def _left(target: Path):
    return journal_tasks(target) if staging_for(target).journal.exists() else []


def test_killed_again_and_again(targets, sources, alone, tmp_path):
    point, rounds, last = Point("reshard.engine.books:Books.add", "after", 7), 0, -1
    while run_many_killed(point, sources["raw"], targets, **LIMITS) == -9:
        recorded = sum(len(_left(Path(target.target))) for target in targets)
        assert recorded > last, "a run that was killed gained nothing"
        rounds, last = rounds + 1, recorded
    assert rounds > 3
    assert_done(targets, alone, tmp_path)


def test_a_target_that_is_left_out_afterwards_changes_nothing_of_the_others(
    targets, sources, alone, tmp_path
):
    """One of them is finished by itself: it is planned otherwise, or goes on; nothing is ever mixed up."""
    point = Point(APPEND, "after", 8)
    assert run_many_killed(point, sources["raw"], targets, **LIMITS) == -9
    reshard.convert(sources["raw"], targets[0].target, **LIMITS, restart=True, **WAYS["columns"])
    made = reshard.convert_all(sources["raw"], targets, **LIMITS)
    assert [report.already_done for report in made.reports] == [True, False, False]
    assert_done(targets, alone, tmp_path)


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(task_stream, "BATCH_TASKS", 1)


@pytest.fixture
def disk_of_half_full(monkeypatch):
    """The disk of the target ``half`` takes some chunks and then no more."""
    real, calls = os.pwrite, []

    def full(fd, *args):
        path = Path(f"/proc/self/fd/{fd}").readlink()
        # Whether a chunk or the journal is the first that finds no room is chance.
        if "/.half.reshard-partial/" in str(path) and not path.name.startswith("journal"):
            calls.append(fd)
            if len(calls) > 60:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, *args)

    monkeypatch.setattr(os, "pwrite", full)


@pytest.mark.usefixtures("small_batches", "disk_of_half_full")
def test_one_target_whose_disk_is_full(targets, sources, alone, tmp_path, monkeypatch):
    with pytest.raises(StorageError, match="No space left on device") as caught:
        reshard.convert_all(sources["raw"], targets, **LIMITS)
    text = str(caught.value)
    assert caught.value.target == str(tmp_path / "half")
    assert text.startswith(f"target '{tmp_path}/half': tensor ")
    for name in WAYS:  # all of them can be gone on with
        assert f"of '{tmp_path}/{name}' (" in text
        assert f"in '{tmp_path}/.{name}.reshard-partial'" in text
    assert not any(Path(target.target).exists() for target in targets)
    monkeypatch.undo()
    made = reshard.convert_all(sources["raw"], targets, **LIMITS)
    assert all(report.resumed_bytes > 0 for report in made.reports)
    assert_done(targets, alone, tmp_path)


@pytest.mark.usefixtures("small_batches")
def test_one_target_that_appears_meanwhile(targets, sources, alone, tmp_path):
    """Those before it are published and stay; it and those behind it are kept."""
    target = tmp_path / "half"

    def appear(_):
        target.mkdir(exist_ok=True)
        (target / "kept").touch()

    with pytest.raises(StorageError) as caught:
        reshard.convert_all(sources["raw"], targets, **LIMITS, progress=appear)
    assert f"the target '{target}' exists already" in str(caught.value)
    assert caught.value.__notes__ == [f"'{tmp_path}/columns' is published and whole"]
    assert staging_for(tmp_path / "packed").journal.exists()
    (target / "kept").unlink()
    target.rmdir()
    made = reshard.convert_all(sources["raw"], targets, **LIMITS)
    assert [report.already_done for report in made.reports] == [True, False, False]
    assert made.read_bytes == 0
    assert_done(targets, alone, tmp_path)


def test_a_target_that_exists_is_refused_before_anything_is_made(targets, sources, tmp_path):
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "kept").touch()
    with pytest.raises(StorageError, match=f"the target '{tmp_path}/packed' exists already"):
        reshard.convert_all(sources["raw"], targets, **LIMITS)
    assert [p.name for p in tmp_path.iterdir()] == ["packed"]


def test_a_target_that_another_run_writes(targets, sources, tmp_path):
    with lock_staging(tmp_path / "half"), pytest.raises(TargetBusyError) as caught:
        reshard.convert_all(sources["raw"], targets, **LIMITS)
    assert caught.value.target == str(tmp_path / "half")
    assert f"is writing '{tmp_path}/half' now" in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".half.reshard-partial"]


@pytest.mark.usefixtures("small_batches")
def test_another_conversion_left_one_of_the_targets(targets, sources, alone, tmp_path):
    """What was left stays, also of the others, whose tasks may be cut otherwise beside another target."""
    assert run_many_killed(Point(APPEND, "after", 25), sources["raw"], targets, **LIMITS) == -9
    half = {**WAYS["half"], "cast": [("rows|cols", "float16")]}
    before = [journal_tasks(Path(target.target)) for target in targets]
    assert all(before)
    with pytest.raises(
        ResumeError, match=f"to '{tmp_path}/half' was another.*: cast was"
    ) as caught:
        other = [targets[0], Target(targets[1].target, **half), targets[2]]
        reshard.convert_all(sources["raw"], other, **LIMITS)
    assert caught.value.target == str(tmp_path / "half")
    with pytest.raises(ResumeError, match="plan changed, perhaps since other targets share its"):
        new = Target(tmp_path / "new", layout=ROWS, cast={"rows": "float16"})
        reshard.convert_all(sources["raw"], [targets[0], new, targets[2]], **LIMITS)
    assert [journal_tasks(Path(target.target)) for target in targets] == before
    assert not (tmp_path / ".new.reshard-partial").exists()
    made = reshard.convert_all(sources["raw"], targets, **LIMITS)
    assert all(report.resumed_bytes > 0 for report in made.reports)
    assert_done(targets, alone, tmp_path)


@pytest.mark.usefixtures("small_batches")
def test_one_target_is_started_over(targets, sources, alone, tmp_path):
    assert run_many_killed(Point(APPEND, "after", 12), sources["raw"], targets, **LIMITS) == -9
    targets[1] = Target(targets[1].target, **WAYS["half"], restart=True)
    made = reshard.convert_all(sources["raw"], targets, **LIMITS)
    assert [report.resumed_bytes > 0 for report in made.reports] == [True, False, True]
    assert_done(targets, alone, tmp_path)


def test_a_source_that_changes_leaves_nothing_of_any_target(targets, sources, tmp_path):
    import shutil

    source = tmp_path / "moving" / "src"
    shutil.copytree(sources["raw"], source)

    def touch(_):
        (source / "new").write_text("more")

    with pytest.raises(SourceChangedError):
        reshard.convert_all(source, targets, **LIMITS, progress=touch)
    assert [p.name for p in tmp_path.iterdir()] == ["moving"]


def test_stopped_once_the_first_is_published(targets, sources, alone, tmp_path, monkeypatch):
    real = local_transaction.dissolve

    def stopped(staging):
        real(staging)
        raise KeyboardInterrupt

    monkeypatch.setattr(local_transaction, "dissolve", stopped)
    with pytest.raises(KeyboardInterrupt) as caught:
        reshard.convert_all(sources["raw"], targets, **LIMITS)
    assert caught.value.__notes__[0] == f"'{tmp_path}/columns' is published and whole"
    monkeypatch.undo()
    assert files_without_times(tmp_path / "columns") == files_without_times(alone / "columns")
    made = reshard.convert_all(sources["raw"], targets, **LIMITS)
    assert [report.already_done for report in made.reports] == [True, False, False]
    assert made.read_bytes == 0
    assert_done(targets, alone, tmp_path)
