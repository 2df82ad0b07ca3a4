"""Chunks that were left out mean zeros; chunks that vanish while they are read do not."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest

import reshard
from reshard.errors import StorageError
from reshard.formats.orbax.reader import open_orbax
from reshard.formats.zarr.values import PlainFiles
from reshard.storage.location import locate
from tests.orbax_trees import save_pytree


@pytest.fixture
def sparse(tmp_path):
    """A checkpoint whose writer left out chunks of zeros, here the first of four."""
    path = save_pytree(
        tmp_path / "source", {"w": jnp.arange(64.0)}, use_ocdbt=False, chunk_byte_size=64
    )
    metadata = json.loads((path / "_METADATA").read_text())
    metadata["store_array_data_equal_to_fill_value"] = False
    (path / "_METADATA").write_text(json.dumps(metadata))
    (path / "w" / "0").unlink()
    return path


def test_a_chunk_that_was_left_out_holds_zeros(sparse, tmp_path):
    assert open_orbax(locate(sparse).view()).locate("w", (0,)) is None
    report = reshard.convert(sparse, tmp_path / "target", check="readback")
    assert report.tensors[0].proof == "proved"


def test_a_chunk_that_vanishes_after_opening_is_not_taken_for_zeros(sparse):
    reader = open_orbax(locate(sparse).view())
    (sparse / "w" / "2").unlink()
    with pytest.raises(
        StorageError,
        match=r"tensor 'w', chunk \[2\]: .*w/2 was there when the checkpoint was opened and is gone now",
    ):
        reader.locate("w", (2,))


def test_a_source_that_vanishes_midway_gives_no_target(sparse, tmp_path, monkeypatch):
    find = PlainFiles.find

    def find_late(files, key, what):
        if key == "w/3":
            (sparse / "w" / "3").unlink()
        return find(files, key, what)

    monkeypatch.setattr(PlainFiles, "find", find_late)
    with pytest.raises(StorageError, match="keep the checkpoint until it is read, then run again"):
        reshard.convert(sparse, tmp_path / "target")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source"]


def test_only_what_is_listed_is_kept_in_memory(sparse):
    files = [p for p in sparse.rglob("*") if p.is_file()]
    assert PlainFiles(locate(sparse)).metadata_bytes == 0
    text = sum(len(str(p.relative_to(sparse))) for p in files)
    assert PlainFiles(locate(sparse), is_listed=True).metadata_bytes == text + 150 * len(files)


def test_stock_orbax_reads_the_same_zeros(sparse):
    import orbax.checkpoint as ocp

    restored = ocp.PyTreeCheckpointer().restore(sparse)["w"]
    assert not np.asarray(restored)[:16].any()
