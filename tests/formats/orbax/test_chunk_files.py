"""Chunk files are recognised by their names alone."""

from __future__ import annotations

import numpy as np
import pytest

from reshard.formats.orbax.chunk_files import ChunkFiles
from reshard.formats.orbax.reader import open_orbax
from reshard.storage.location import locate
from tests.orbax_trees import save_manager_items, save_pytree, small_tree


def chunks_of(path):
    return ChunkFiles(open_orbax(locate(path).view()).chunks.items)


@pytest.mark.parametrize("zarr3", [False, True])
def test_exactly_the_chunks_of_a_checkpoint(tmp_path, zarr3):
    path = save_pytree(tmp_path / "c", small_tree(), use_ocdbt=False, use_zarr3=zarr3)
    chunks = chunks_of(path)
    names = [str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()]
    others = [n for n in names if n not in chunks]
    assert {n.rpartition("/")[2] for n in others} <= {
        ".zarray", "zarr.json", "_METADATA", "_sharding", "_CHECKPOINT_METADATA",
        "commit_success.txt", "process_0",
    }  # fmt: skip
    assert len(others) < len(names)


@pytest.mark.parametrize("name", ["w/1.0", "w/00.0", "w/0", "w/0.0.0", "w/c/0/0", "x/0.0", "w", ""])
def test_what_only_looks_like_a_chunk_is_none(tmp_path, name):
    save_pytree(tmp_path / "c", {"w": np.zeros((3, 4))}, use_ocdbt=False)
    chunks = chunks_of(tmp_path / "c")
    assert "w/0.0" in chunks
    assert name not in chunks


def test_a_database_has_none(tmp_path):
    path = save_manager_items(tmp_path / "run", small_tree())
    chunks = chunks_of(path)
    assert not any(str(p.relative_to(path)) in chunks for p in path.rglob("*"))
