"""Which chunks of an interrupted run are kept: those that match the journal."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

import pytest

import reshard
from reshard.checksums import crc
from reshard.conversion import resumed
from reshard.errors import (
    StorageError,
)
from reshard.storage.local.staging import staging_for
from tests.checkpoint_files import files_without_times
from tests.robustness.crash.cases import CASES
from tests.robustness.crash.interrupted import (
    CASE,
    chunk_files,
    other_boot,
    stop,
)

pytestmark = pytest.mark.usefixtures("small_batches")


def test_removed_chunks_are_written_again(unfinished, source, target, expected):
    for file in chunk_files(unfinished.root)[::2]:
        file.unlink()
    report = reshard.convert(source, target, **CASE.options)
    assert files_without_times(target) == expected
    assert report.resumed_bytes < report.moved_bytes


def test_files_of_another_length_are_written_again(unfinished, source, target, expected):
    for file in chunk_files(unfinished.root):
        with file.open("ab") as opened:
            opened.write(b"more")
    reshard.convert(source, target, **CASE.options)
    assert files_without_times(target) == expected


def test_files_that_the_journal_does_not_name_are_removed(
    unfinished, source, target, expected, tmp_path
):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("kept")
    (unfinished.root / "stray").write_text("x")
    (unfinished.root / "rows" / "link").symlink_to(tmp_path / "precious")
    reshard.convert(source, target, **CASE.options)
    assert files_without_times(target) == expected
    assert (tmp_path / "precious" / "file").read_text() == "kept"


@pytest.fixture(scope="module")
def whole(sources, tmp_path_factory):
    """The files that a case makes if nothing happens."""

    @cache
    def made(name):
        target = tmp_path_factory.mktemp("whole") / "t"
        reshard.convert(sources[CASES[name].source], target, **CASES[name].options)
        return files_without_times(target)

    return made


@pytest.mark.parametrize("name", ["scatter", "zstd", "copy"])
def test_a_chunk_that_changed_between_the_runs_is_made_again(name, sources, whole, tmp_path):
    case, target = CASES[name], tmp_path / "t"
    source = sources[case.source]
    stop(source, target, KeyboardInterrupt(), **case.options)
    staging = staging_for(target)
    for file in chunk_files(staging.root):
        lose(file, "one bit")
        # The clock of the file system has steps of milliseconds: the record is made a step older, not the change newer.
        before = min(staging.journal.stat().st_mtime_ns, file.stat().st_ctime_ns - 1)
        os.utime(staging.journal, ns=(before, before))
    reshard.convert(source, target, **case.options)
    assert files_without_times(target) == whole(name)


@pytest.mark.parametrize("loss", ["nothing", "gone", "empty", "zeros", "half", "one bit"])
@pytest.mark.parametrize("name", ["scatter", "weave", "zstd", "copy", "cast"])
def test_after_a_reboot_only_chunks_that_read_back_are_kept(
    name, loss, sources, whole, tmp_path, monkeypatch
):
    case, target = CASES[name], tmp_path / "t"
    source = sources[case.source]
    stop(source, target, KeyboardInterrupt(), **case.options)
    other_boot(monkeypatch)
    for file in chunk_files(staging_for(target).root)[::2]:
        lose(file, loss)
    report = reshard.convert(source, target, **case.options)
    assert files_without_times(target) == whole(name)
    if loss == "nothing" and name != "copy":
        assert report.resumed_bytes > 0


def lose(file: Path, loss: str) -> None:
    data = file.read_bytes()
    if loss == "gone":
        file.unlink()
    elif loss != "nothing":
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        lost = {"empty": b"", "zeros": bytes(len(data)), "half": data[:middle], "one bit": flipped}
        file.write_bytes(lost[loss])


def test_after_a_reboot_the_journal_records_the_new_boot(
    unfinished, source, target, expected, monkeypatch
):
    other_boot(monkeypatch)
    stop(source, target, KeyboardInterrupt(), after=2)
    assert (
        json.loads(unfinished.journal.read_bytes().partition(b"\n")[0][9:])["boot"]
        == "another boot"
    )
    monkeypatch.setattr(resumed, "damaged", None)  # not asked again
    reshard.convert(source, target, **CASE.options)
    assert files_without_times(target) == expected


def test_after_a_reboot_a_database_is_written_again(sources, target, monkeypatch):
    options = CASES["ocdbt"].options
    stop(sources["raw"], target, KeyboardInterrupt(), **options)
    other_boot(monkeypatch)
    assert reshard.convert(sources["raw"], target, **options).resumed_bytes == 0
    assert reshard.verify(sources["raw"], target).differences == 0


@pytest.mark.usefixtures("unfinished")
def test_chunks_are_checked_in_small_reads(source, target, monkeypatch, expected):
    monkeypatch.setattr(crc, "READ_BYTES", 1000)
    other_boot(monkeypatch)
    stages = []
    report = reshard.convert(
        source, target, progress=lambda p: stages.append(p.stage), **CASE.options
    )
    assert report.resumed_bytes > 0
    assert stages[0] == "checking"
    assert files_without_times(target) == expected


def test_nothing_is_published_when_a_chunk_has_vanished(source, target):
    def remove_one(progress):
        if progress.tasks_done == progress.tasks and progress.stage == "copying":
            for file in chunk_files(staging_for(target).root)[:1]:
                file.unlink()

    with pytest.raises(
        StorageError, match=r"tensor '\w+', chunk \[.*\]: it was written, but is not whole"
    ):
        reshard.convert(source, target, progress=remove_one, **CASE.options)
    assert not target.exists()
    assert reshard.convert(source, target, **CASE.options).resumed_bytes > 0
