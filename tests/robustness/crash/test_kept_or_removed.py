"""What an interrupted or failing run keeps and removes, and its messages."""

from __future__ import annotations

import errno
import os
import shutil

import pytest

import reshard
from reshard.conversion import convert
from reshard.errors import (
    CorruptError,
    ReshardError,
    SourceChangedError,
    StorageError,
    SyncError,
    TargetExistsError,
    VerificationError,
)
from reshard.storage.local import syncing
from reshard.storage.local import transaction as local_transaction
from reshard.storage.local.staging import staging_for
from tests.checkpoint_files import files_without_times
from tests.robustness.crash.interrupted import (
    CASE,
    journal_of,
    stop,
)

pytestmark = pytest.mark.usefixtures("small_batches")


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        StorageError("full"),
        ReshardError("executor"),
        MemoryError(),
        SystemExit(),
    ],
    ids=lambda e: type(e).__name__,
)
def test_output_of_an_interrupted_run_is_kept_and_named(error, source, target, expected):
    caught = stop(source, target, error)
    said = str(caught) + "".join(getattr(caught, "__notes__", []))
    assert f"% of 5.00 MiB) was kept in '{staging_for(target).folder}': run the same again" in said
    assert not target.exists()
    report = reshard.convert(source, target, **CASE.options)
    assert report.resumed_bytes > 0
    assert files_without_times(target) == expected


@pytest.mark.parametrize(
    "error",
    [
        VerificationError("differs"),
        CorruptError("damaged"),
        SyncError("lost"),
        SourceChangedError("new"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_output_that_cannot_be_trusted_is_removed(error, source, target):
    caught = stop(source, target, error)
    assert "kept" not in str(caught)
    assert list(target.parent.iterdir()) == []


def test_a_run_that_wrote_nothing_leaves_nothing(source, target, monkeypatch):
    def fail(*_):
        raise StorageError("at once")

    monkeypatch.setattr(convert, "run_batches", fail)
    with pytest.raises(StorageError, match=r"^at once$"):
        reshard.convert(source, target, **CASE.options)
    assert list(target.parent.iterdir()) == []


def test_nothing_is_kept_after_a_failed_sync(source, target, monkeypatch):
    def refuse(_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(
        SyncError, match=r"cannot sync .*; the device reports a read or write error"
    ):
        syncing.sync_tree(source)
    monkeypatch.setattr(local_transaction, "publish", lambda s, **_: syncing.sync_tree(s.root))
    with pytest.raises(SyncError):
        reshard.convert(source, target, **CASE.options)
    assert not staging_for(target).root.exists()
    assert not journal_of(target).exists()


def test_the_working_directory_may_change_during_a_run(source, target, expected, monkeypatch):
    monkeypatch.chdir(target.parent)
    elsewhere = target.parent / "elsewhere"
    elsewhere.mkdir()
    report = reshard.convert(
        os.path.relpath(source), "t", progress=lambda _: os.chdir(elsewhere), **CASE.options
    )
    assert (report.source, report.target) == (os.path.relpath(source, target.parent), "t")
    assert files_without_times(target) == expected
    assert list(elsewhere.iterdir()) == []


def test_a_folder_that_appears_during_the_run_is_not_overwritten(source, target):
    def appear(progress):
        if progress.stage == "syncing":
            target.mkdir()
            (target / "precious").write_text("x")

    with pytest.raises(TargetExistsError, match="something other than a checkpoint"):
        reshard.convert(source, target, overwrite=True, progress=appear, **CASE.options)
    assert [p.name for p in target.iterdir()] == ["precious"]
    shutil.rmtree(target)
    assert reshard.convert(source, target, **CASE.options).resumed_bytes > 0


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("step", ["publish", "dissolve"])
def test_an_interrupt_after_publishing_says_that_the_target_is_whole(
    step, overwrite, source, target, expected, monkeypatch
):
    real = getattr(local_transaction, step)

    def stopped(*arguments, **options):
        real(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(local_transaction, step, stopped)
    with pytest.raises(KeyboardInterrupt) as caught:
        reshard.convert(source, target, overwrite=overwrite, **CASE.options)
    assert caught.value.__notes__ == [f"'{target}' is published and whole"]
    monkeypatch.undo()
    assert reshard.convert(source, target, **CASE.options).already_done
    assert files_without_times(target) == expected
    assert [p.name for p in target.parent.iterdir()] == ["t"]


@pytest.mark.usefixtures("unfinished")
def test_progress_and_report_count_resumed_bytes(source, target):
    seen = []
    report = reshard.convert(source, target, progress=seen.append, **CASE.options)
    assert seen[0].resumed_bytes == seen[0].moved_bytes == report.resumed_bytes > 0
    assert seen[-1].moved_bytes == seen[-1].total_bytes == report.moved_bytes


@pytest.mark.usefixtures("unfinished")
def test_only_the_space_that_is_still_needed_is_asked_for(source, target, monkeypatch):
    whole = reshard.plan(source, target, **CASE.options).written_bytes
    monkeypatch.setattr("reshard.storage.local.store.free_bytes", lambda _: whole - 1)
    report = reshard.convert(source, target, **CASE.options)
    assert report.resumed_bytes > 0
