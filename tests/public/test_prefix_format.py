"""A checkpoint that is named by a prefix, which is neither a folder nor a file, goes through every public function."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.formats import known_formats
from tests.equal import assert_same_trees
from tests.prefix_format import PREFIX, write_prefix

ARRAYS = {"w": np.arange(48, dtype=np.float32).reshape(6, 8), "b": np.arange(4, dtype=np.int8)}
OTHER = {name: array + 1 for name, array in ARRAYS.items()}


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``run/ckpt-100``, beside another one whose name begins alike."""
    monkeypatch.setattr(known_formats, "FORMATS", (*known_formats.FORMATS, PREFIX))
    write_prefix(tmp_path / "run" / "ckpt-1000", OTHER)
    return write_prefix(tmp_path / "run" / "ckpt-100", ARRAYS)


def test_it_is_read_by_every_function(prefix: Path, tmp_path: Path) -> None:
    assert reshard.inspect(prefix).format == reshard.checkpoint_format(prefix) == "prefix"
    assert reshard.plan(prefix, tmp_path / "orbax").metadata_bytes > 0
    assert_same_trees(reshard.restore(prefix), ARRAYS)
    assert (
        b"".join(reshard.open_checkpoint(prefix).stream("w", "2:5")) == ARRAYS["w"][2:5].tobytes()
    )
    assert reshard.verify(prefix).differences == 0
    for to in ("orbax", "safetensors"):
        target = tmp_path / to
        reshard.convert(prefix, target, to=to, check="readback")
        assert_same_trees(reshard.restore(target), ARRAYS)
        assert reshard.verify(prefix, target).differences == 0
        assert reshard.diff(prefix.with_name("ckpt-1000"), target).tensors
        assert reshard.convert(prefix, target, to=to).already_done


def test_a_file_that_changed_is_another_source(prefix: Path, tmp_path: Path) -> None:
    reshard.convert(prefix, tmp_path / "out")
    write_prefix(prefix.with_name("ckpt-1000"), ARRAYS)  # not one of its files
    assert reshard.convert(prefix, tmp_path / "out").already_done
    write_prefix(prefix, OTHER)
    with pytest.raises(reshard.TargetExistsError):
        reshard.convert(prefix, tmp_path / "out")
    reshard.convert(prefix, tmp_path / "out", overwrite=True)
    assert_same_trees(reshard.restore(tmp_path / "out"), OTHER)


@pytest.mark.parametrize("ending", [".idx", ".part-00001-of-00002", ".part-00002-of-00003"])
def test_a_file_that_changes_while_it_is_read(prefix: Path, tmp_path: Path, ending: str) -> None:
    file = prefix.with_name(prefix.name + ending)

    def change(progress: reshard.Progress) -> None:
        if progress.stage == "copying" and progress.tasks_done == progress.tasks:
            file.touch()
            os.utime(file, ns=(0, 1))

    with pytest.raises(reshard.SourceChangedError, match="changed while it was read"):
        reshard.convert(prefix, tmp_path / "out", progress=change)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_half_a_name_is_no_prefix(prefix: Path) -> None:
    with pytest.raises(
        reshard.StorageError, match=r"ckpt-10 does not exist: expected the directory"
    ):
        reshard.inspect(prefix.with_name("ckpt-10"))
    assert not reshard.is_checkpoint(prefix.with_name("ckpt-10"))


def test_a_folder_of_that_name_comes_first(prefix: Path) -> None:
    reshard.save(prefix, OTHER)
    assert reshard.inspect(prefix).format == "orbax"


def test_an_open_one_must_not_change(prefix: Path) -> None:
    opened = reshard.open_checkpoint(prefix)
    os.utime(prefix.with_name("ckpt-100.part-00000-of-00002"), ns=(0, 1))
    with pytest.raises(reshard.StorageError, match="is not the checkpoint that was opened"):
        opened.restore()
    prefix.with_name("ckpt-100.idx").unlink()
    with pytest.raises(reshard.StorageError, match="is not there any more"):
        opened.restore()


@pytest.mark.parametrize("ending", [".idx", ".part-00001-of-00002"])
def test_a_link_that_leads_out_is_refused(prefix: Path, tmp_path: Path, ending: str) -> None:
    file = prefix.with_name(prefix.name + ending)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(reshard.FormatError, match="is a symbolic link to a place outside of"):
        reshard.inspect(prefix)
