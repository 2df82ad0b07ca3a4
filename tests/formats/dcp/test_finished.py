"""Saves of ranks by themselves, which no file ends: finished once their pieces and files are all there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.errors import CorruptError
from reshard.formats.dcp import files
from reshard.formats.steps import committed_steps
from reshard.storage.location import locate
from tests.dcp_files import Item, entry, tensor_archive, tensor_entry, value_archive, write_items

ROWS = np.arange(32, dtype=np.float32).reshape(8, 4)


def _save_rank(folder: Path, rank: int) -> None:
    start = 4 * rank
    listed = {"w": tensor_entry("float32", (8, 4), [((start, 0), (4, 4))]), "step": entry(1)}
    name = f"__{rank}_0.distcp"
    items = [
        Item("w", (start, 0), tensor_archive(ROWS[start : start + 4]), name),
        Item("step", None, value_archive(7), name),
    ]
    write_items(folder, listed, items, metadata=f"__{rank}.metadata")


def _finished(run: Path) -> list[int]:
    return list(committed_steps(locate(str(run))))


def test_a_rank_that_did_not_save_leaves_the_step_unfinished(tmp_path: Path) -> None:
    for step in (1, 2):
        _save_rank(tmp_path / str(step), 0)
    _save_rank(tmp_path / "1", 1)
    assert _finished(tmp_path) == [1]
    assert reshard.restore(tmp_path, step="latest")["step"] == 7
    with pytest.raises(CorruptError, match="no piece holds"):
        reshard.inspect(tmp_path / "2")
    _save_rank(tmp_path / "2", 1)
    assert _finished(tmp_path) == [1, 2]
    assert reshard.restore(tmp_path, step="latest")["w"].tobytes() == ROWS.tobytes()


@pytest.mark.parametrize("gone", ["__0.metadata", "__1_0.distcp"])
def test_a_file_that_is_missing(tmp_path: Path, gone: str) -> None:
    for rank in (0, 1):
        _save_rank(tmp_path / "1", rank)
    assert _finished(tmp_path) == [1]
    (tmp_path / "1" / gone).unlink()
    assert _finished(tmp_path) == []


@pytest.mark.parametrize("nbytes", [0, 1, 200])
def test_metadata_that_is_damaged(tmp_path: Path, nbytes: int) -> None:
    for rank in (0, 1):
        _save_rank(tmp_path / "1", rank)
    file = tmp_path / "1" / "__1.metadata"
    file.write_bytes(file.read_bytes()[:nbytes])
    assert _finished(tmp_path) == []


def test_of_large_metadata_the_ranks_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_MOST_READ_BYTES", 10)
    _save_rank(tmp_path / "1", 1)
    assert _finished(tmp_path) == []
    _save_rank(tmp_path / "1", 0)
    assert _finished(tmp_path) == [1]
