"""chunks_for: with any of the named layouts, each process reads its shards and nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import v1

import reshard
from tests.orbax_trees import mesh, put
from tests.saving.states import random

LAYOUTS = {
    "rows": ((8,), ("x",), ("x",)),
    "columns": ((8,), ("x",), (None, "x")),
    "both": ((2, 4), ("x", "y"), ("x", "y")),
    "both_on_one": ((4, 3), ("x", "y"), (("x", "y"), None)),
}


def layout_map(name):
    shape, names, axes = LAYOUTS[name]
    layouts = reshard.LayoutMap(reshard.DeviceMesh(shape, names))
    layouts["w"] = axes
    return layouts


def amplification(path, tmp_path, layout):
    """Stored bytes that the holders of shards read, over the bytes that they need."""
    found = reshard.plan(path, tmp_path / "nowhere", layout=layout, max_memory="64MiB")
    read = needed = 0
    for planned in found.tensors:
        storage, slices = planned.source_spec.storage, planned.target_spec.slices
        for box in slices.boxes():
            touched = math.prod(map(len, storage.overlapping(box)))
            read += touched * math.prod(planned.source_chunk_shape)
            needed += box.size
    return read / needed


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_every_named_layout_is_served_without_surplus(tmp_path, compression):
    tree = {"w": put(random(3072, 1536), "data", "model"), "v_w": put(random(3072, 1536), "data")}
    wanted = [layout_map(name) for name in LAYOUTS]
    reshard.save(tmp_path / "c", tree, chunks_for=wanted, compression=compression)
    reshard.save(tmp_path / "plain", tree, compression=compression)
    own = reshard.LayoutMap(reshard.DeviceMesh((4, 2), ("data", "model")))
    own["^w"], own["v_w"] = ("data", "model"), ("data",)
    for layout in (*wanted, own):
        assert amplification(tmp_path / "c", tmp_path, layout) == 1
    assert amplification(tmp_path / "plain", tmp_path, layout_map("columns")) > 1
    np.testing.assert_array_equal(np.asarray(v1.load(tmp_path / "c")["w"]), np.asarray(tree["w"]))


def test_meshes_layout_files_and_partitions_are_taken(tmp_path):
    tree = {"w": put(random(1536, 768), "x", on=mesh((8,), ("x",))), "t": random(6144, 64)}
    file = {"partitions": [{"match": "t", "fixed_shards": 6, "axis": 0}]}
    wanted = [reshard.DeviceMesh((12,), ("x",)), file]
    reshard.save(tmp_path / "c", tree, chunks_for=wanted)
    chunks = {n: t.spec.chunk_shape for n, t in reshard.inspect(tmp_path / "c").tensors.items()}
    assert chunks == {"w": (64, 768), "t": (1024, 64)}


def test_a_mod_table_is_cut_for_the_layouts_too(tmp_path):
    table = reshard.ShardedVariable.split(random(4096, 256), 3, partition_strategy="mod")
    layouts = reshard.LayoutMap(reshard.DeviceMesh((3,), ("x",)))
    layouts["t"] = (None,)
    reshard.save(tmp_path / "c", {"t": table}, chunks_for=[layouts])
    np.testing.assert_array_equal(v1.load(tmp_path / "c")["t"], table.numpy())


def test_layouts_that_no_useful_chunks_serve_are_refused(tmp_path):
    tree = {"t": random(100_003, 64)}
    file = [{"partitions": [{"match": "t", "fixed_shards": n}]} for n in (3, 7)]
    with pytest.raises(
        reshard.PlanError, match=r"'t' of shape .*: no chunks of at least 64\.0 KiB serve"
    ):
        reshard.save(tmp_path / "c", tree, chunks_for=file)
    assert not list(tmp_path.iterdir())


def test_shards_and_targets_of_few_bytes_share_chunks(tmp_path):
    """Up to 64 KiB are read for less: a file for each would cost more."""
    sharding = NamedSharding(mesh((8,), ("x",)), PartitionSpec("x"))
    reshard.save(
        tmp_path / "c",
        {"b": put(random(64), "x", on=sharding.mesh)},
        chunks_for=[layout_map("rows")],
    )
    (found,) = reshard.inspect(tmp_path / "c").tensors.values()
    assert found.spec.chunk_shape == (64,)
