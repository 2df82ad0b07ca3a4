"""Sources that vanish, shrink or cannot be opened while they are read."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import reshard
from reshard.errors import CorruptError, ReshardError, StorageError
from reshard.storage.local.staging import staging_for
from reshard.verification.reports import Verification
from tests.checkpoint_files import files_of
from tests.robustness.faults.cases import COLUMNS, clear, only
from tests.robustness.faults.seam import Call, Go, at_the_seam
from tests.robustness.faults.trial import nothing_stays_open, within_time


def refused_midway(source: Path, target: Path, do: Callable[[], object], **options: object) -> ReshardError:  # fmt: skip
    """The error of a conversion during which something is done to its source, when a part is written."""

    def midway(progress: reshard.Progress) -> None:
        if progress.tasks_done == 2 and progress.stage == "copying":
            do()

    with within_time(), nothing_stays_open(), pytest.raises(ReshardError) as caught:
        reshard.convert(source, target, workers=1, progress=midway, **options)
    assert not target.exists()
    return caught.value


@pytest.fixture
def copy(large: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(large, tmp_path / "src"))


OPTIONS = ({"compression": "keep"}, {"compression": "zstd"}, {"compression": "none"}, {"ocdbt": True})  # fmt: skip


def of_tensors(source: Path) -> list[Path]:
    return [p for p in source.glob("w*/*") if not p.name.startswith(".")]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_data_files_are_deleted_midway_and_come_back(options, copy, large, tmp_path):
    def delete() -> None:
        for path in of_tensors(copy):
            path.rename(path.with_name(f"{path.name}.away"))

    error = refused_midway(copy, tmp_path / "dst", delete, **options)
    assert isinstance(error, StorageError | CorruptError)
    assert str(copy) in str(error)
    assert "tensor 'w" in str(error)
    for path in copy.glob("w*/*.away"):
        path.rename(path.with_name(path.name.removesuffix(".away")))
    report = reshard.convert(copy, tmp_path / "dst", workers=1, **options)
    assert report.resumed_bytes > 0
    assert reshard.verify(large, tmp_path / "dst").differences == 0


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_data_files_are_truncated_midway(options, copy, tmp_path):
    def truncate() -> None:
        for path in of_tensors(copy):
            os.truncate(path, 100)

    error = refused_midway(copy, tmp_path / "dst", truncate, **options)
    assert isinstance(error, CorruptError)
    assert str(copy) in str(error)
    assert "restore it" in str(error)
    assert not staging_for(
        tmp_path / "dst"
    ).folder.exists()  # what was read before may be wrong too


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_folder_is_removed_midway(options, copy, large, tmp_path):
    error = refused_midway(copy, tmp_path / "dst", lambda: copy.rename(tmp_path / "away"), **options)  # fmt: skip
    assert isinstance(error, StorageError | CorruptError)
    assert str(copy) in str(error)
    (tmp_path / "away").rename(copy)
    assert reshard.convert(copy, tmp_path / "dst", workers=1, **options).resumed_bytes > 0
    assert reshard.verify(large, tmp_path / "dst").differences == 0


def test_a_restore_whose_source_is_removed(copy, tmp_path):
    opened = reshard.open_checkpoint(copy)
    copy.rename(tmp_path / "away")
    with nothing_stays_open(), pytest.raises(StorageError, match="is not there any more"):
        opened.restore()


def damage_told(result: object) -> str:
    """What a verification found; a restore that ends found nothing."""
    if not isinstance(result, Verification):
        return ""
    tensors = [t.detail for t in result.tensors if t.is_difference]
    files = [f"{result.a}: {f}" for f in result.files if f.is_difference]
    return "\n".join([*tensors, *files, *result.damage])


@pytest.mark.parametrize("act", ["verify", "restore"])
def test_every_read_of_verify_and_restore(act, work):
    """Both only read, so that every read fails once; the folders stay as they are."""
    reshard.convert(work / "zstd", work / "dst", layout=COLUMNS, workers=1)
    do: Callable[[], object] = {
        "verify": lambda: reshard.verify(work / "dst", workers=1),
        "restore": lambda: reshard.restore(work / "dst", workers=1),
    }[act]
    before, reads, told = files_of(work / "dst"), [0], ""

    def failing_at(number: int) -> Callable[[Call, Go], object]:
        reads[0] = 0

        def hook(call: Call, go: Go) -> object:
            # Leaves are counted beforehand; whoever opens the checkpoint reads the same files again.
            is_estimate = any(
                site.endswith((":leaf_count", ":_count_tree", ":_count")) for site in call.site
            )
            if call.kind in ("open", "pread", "preadv", "read") and not is_estimate:
                reads[0] += 1
                if reads[0] == number:
                    raise OSError(5, os.strerror(5))
            return go()

        return hook

    number = 1
    while True:
        with within_time(), nothing_stays_open(), at_the_seam(work, failing_at(number)):
            try:
                told = damage_told(do())
            except ReshardError as error:
                told = str(error)
        if reads[0] < number:  # every read was there
            assert told == ""
            break
        assert "Input/output error" in told
        assert str(work / "dst") in told
        number += 3 if number > 12 else 1
    assert number > 12
    assert files_of(work / "dst") == before


@contextmanager
def limited(kind: int, value: int) -> Iterator[None]:
    old = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, old)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_limit_of_file_sizes(compression, large, tmp_path):
    """RLIMIT_FSIZE, which stands for a quota; without it the run goes on."""
    text = (
        r"tensor '.*', chunk .*: cannot write '.*': File too large; raise the limit of file sizes"
    )
    with limited(resource.RLIMIT_FSIZE, 300_000), pytest.raises(StorageError, match=text):
        reshard.convert(large, tmp_path / "dst", compression=compression, workers=1)
    assert not (tmp_path / "dst").exists()
    reshard.convert(large, tmp_path / "dst", compression=compression, workers=1)
    assert reshard.verify(large, tmp_path / "dst").differences == 0


@pytest.mark.parametrize("spare", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("strategy", ["scatter", "copy"])
def test_limit_of_open_files(spare, strategy, work):
    """However few descriptors are left, the answer is an error that says so, or the whole target."""
    with only(strategy):
        lowest = os.dup(0)
        os.close(lowest)
        with within_time(), nothing_stays_open():
            try:
                with limited(resource.RLIMIT_NOFILE, lowest + spare):
                    reshard.convert(work / "zstd", work / "dst", compression="keep", workers=1)
            except ReshardError as error:
                assert "Too many open files" in str(error)
                assert "ulimit -n" in str(error)
                assert not (work / "dst").exists()
                reshard.convert(work / "zstd", work / "dst", compression="keep", workers=1)
    assert reshard.verify(work / "zstd", work / "dst").differences == 0
    clear(work)
