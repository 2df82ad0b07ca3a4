"""Shards, tables and plain arrays: saved as one, restored as another, converted in between."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

import reshard
from reshard import (
    DeviceMesh,
    FixedShardsPartitioner,
    LayoutMap,
    MaxSizePartitioner,
    MinSizePartitioner,
    ShardedVariable,
)
from reshard.formats.slices.parse import read_slices
from reshard.storage.location import locate
from tests.campaigns import examples
from tests.orbax_trees import mesh, put

SHAPE = (13, 8)
VALUES = np.random.default_rng(0).integers(0, 1 << 31, SHAPE, np.int32)


def rows_of(variable):
    return [shard.shape[variable.axis] for shard in variable.variables]


def check(found, strategy, shards):
    """A ShardedVariable of VALUES whose shards hold what its strategy says."""
    assert (found.partition_strategy, len(found.variables)) == (strategy, shards)
    np.testing.assert_array_equal(found.numpy(), VALUES, strict=True)
    taken = np.moveaxis(VALUES, found.axis, 0)
    parts = [np.moveaxis(np.asarray(shard), found.axis, 0) for shard in found.variables]
    if strategy == "mod":
        expected = [taken[i::shards] for i in range(shards)]
    else:
        expected = np.split(taken, np.cumsum([len(part) for part in parts])[:-1])
    for part, rows in zip(parts, expected, strict=True):
        np.testing.assert_array_equal(part, rows)


@settings(max_examples=examples(20))
@given(
    n=st.integers(1, 15), m=st.integers(1, 15), axis=st.integers(0, 1), strategy=st.sampled_from(["div", "mod"])
)  # fmt: skip
def test_n_shards_to_m_and_back(tmp_path_factory, n, m, axis, strategy):
    root = tmp_path_factory.mktemp("shards")
    before = ShardedVariable.split(VALUES, n, "v", axis=axis, partition_strategy=strategy)
    reshard.save(root / "n", {"v": before})
    middle = reshard.restore(root / "n", partition=m, axis=axis)["v"]
    check(middle, strategy, m)
    reshard.save(root / "m", {"v": middle})
    after = reshard.restore(root / "m", like={"v": before})["v"]
    check(after, strategy, n)
    assert rows_of(after) == rows_of(before)
    assert reshard.verify(root / "n", root / "m").differences == 0


@pytest.mark.parametrize("rows", [(4, 4, 4, 1), (0, 13), (6, 0, 0, 7), (13,), (1,) * 13], ids=str)
def test_any_rows_to_any_others(tmp_path, rows):
    cuts = np.cumsum(rows)[:-1]
    reshard.save(tmp_path / "c", {"v": ShardedVariable(np.split(VALUES, cuts), "v")})
    for shards in (1, 2, 4):
        check(reshard.restore(tmp_path / "c", partition=shards)["v"], "div", shards)
    backwards = ShardedVariable(np.split(VALUES * 0, 13 - cuts[::-1]), "w")
    found = reshard.restore(tmp_path / "c", {"w": backwards}, rename=[("^v$", "w")])["w"]
    check(found, "div", len(rows))
    assert rows_of(found) == list(rows[::-1])


def test_plain_arrays_become_shards_and_shards_plain_arrays(tmp_path):
    table = ShardedVariable.split(VALUES, 4, "sharded")
    tree = {"plain": put(VALUES, None, "model"), "sharded": table, "host": VALUES}
    reshard.save(tmp_path / "c", tree)
    swapped = {
        "plain": table,
        "host": ShardedVariable.split(VALUES, 3, axis=1),
        "sharded": jax.ShapeDtypeStruct(SHAPE, np.int32),
    }
    found = reshard.restore(tmp_path / "c", swapped)
    check(found["plain"], "div", 4)
    check(found["host"], "div", 3)
    np.testing.assert_array_equal(found["sharded"], VALUES, strict=True)
    for array in reshard.restore(tmp_path / "c").values():
        np.testing.assert_array_equal(array, VALUES, strict=True)


@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_sharded_along_rows_goes_onto_a_mesh_along_columns(tmp_path, strategy):
    table = ShardedVariable.split(VALUES, 5, partition_strategy=strategy, devices=jax.devices())
    reshard.save(tmp_path / "c", {"v": table})
    columns = NamedSharding(mesh((8,), ("x",)), PartitionSpec(None, "x"))
    found = reshard.restore(tmp_path / "c", layout=columns)["v"]
    assert found.sharding == columns
    np.testing.assert_array_equal(found, VALUES, strict=True)


def test_a_variable_is_made_after_the_checkpoint_was_opened(tmp_path):
    reshard.save(tmp_path / "c", {"v": ShardedVariable.split(VALUES, 4, "v"), "other": np.ones(3)})
    opened = reshard.open_checkpoint(tmp_path / "c")
    shape, dtype = opened.tensors["v"].shape, opened.tensors["v"].dtype
    late = ShardedVariable.split(np.zeros(shape, dtype), 2, "v")
    check(opened.restore({"v": late}, unexpected="ignore")["v"], "div", 2)


@pytest.mark.parametrize("shards", [1, 2, 7])
def test_a_table_stays_right_through_a_conversion(tmp_path, shards):
    """Rows are stored by their ids, so another layout changes nothing of what row belongs to what id."""
    tree = {
        "mod": ShardedVariable.split(VALUES, 5, partition_strategy="mod"),
        "div": ShardedVariable.split(VALUES, 3),
        "net": put(VALUES, None, "model"),
    }
    reshard.save(tmp_path / "saved", tree)
    layouts = LayoutMap(DeviceMesh((2, 4), ("data", "model")))
    layouts["mod|div|net"] = (None, "model")
    reshard.convert(tmp_path / "saved", tmp_path / "laid_out", layout=layouts)
    reshard.convert(tmp_path / "saved", tmp_path / "copied")
    rows = {"partitions": [{"match": "mod|div|net", "fixed_shards": 6, "axis": 0}]}
    reshard.convert(tmp_path / "saved", tmp_path / "rows", layout=rows)
    columns = {"partitions": [{"match": "mod|div|net", "fixed_shards": 2, "axis": 1}]}
    reshard.convert(tmp_path / "saved", tmp_path / "columns", layout=columns)
    counts = {"laid_out": 5, "copied": 5, "rows": 6, "columns": 5}
    for name, count in counts.items():
        entry = read_slices(locate(tmp_path / name)).tensors["mod"]
        assert entry.partition == {"strategy": "mod", "axis": 0, "shards": count}
        assert reshard.verify(tmp_path / "saved", tmp_path / name).differences == 0
        found = reshard.restore(tmp_path / name, partition=shards, select=["div", "net"])
        check(found["div"], "div", shards)
        check(found["net"], "div", shards)
        check(reshard.restore(tmp_path / name, partition=shards)["mod"], "mod", shards)
        plain = reshard.restore(tmp_path / name)["mod"]
        np.testing.assert_array_equal(plain, VALUES, strict=True)


def test_what_was_saved_is_shown_and_verified(tmp_path):
    tree = {
        "net": put(VALUES, None, "model"),
        "table": ShardedVariable.split(VALUES, 5, partition_strategy="mod"),
    }
    reshard.save(tmp_path / "c", tree)
    shown = {n: t.spec for n, t in reshard.inspect(tmp_path / "c").tensors.items()}
    assert {name: (s.shape, s.dtype) for name, s in shown.items()} == {
        "net": (SHAPE, "int32"),
        "table": (SHAPE, "int32"),
    }
    assert shown["net"].layout.axes == (None, "model")
    checked = reshard.verify(tmp_path / "c")
    assert {t.status for t in checked.tensors} == {"recorded"}
    chunk = next((tmp_path / "c" / "table").glob("c*"))
    damaged = bytearray(chunk.read_bytes())
    damaged[40] ^= 1
    chunk.write_bytes(damaged)
    with pytest.raises(reshard.CorruptError, match="'table', chunk"):
        reshard.restore(tmp_path / "c", partition=2)


def test_arrays_are_donated_while_they_are_saved(tmp_path):
    state = {"net": put(VALUES, None, "model"), "host": VALUES.copy()}
    table = ShardedVariable.split(VALUES, 5, partition_strategy="mod")
    handle = reshard.save(tmp_path / "c", {**state, "table": table}, wait=False)
    jax.jit(lambda x: x * 0, donate_argnums=0)(state["net"]).block_until_ready()
    state["host"][:] = 0
    table.assign(table.numpy() * 0)
    handle.wait()
    for array in reshard.restore(tmp_path / "c").values():
        np.testing.assert_array_equal(array, VALUES, strict=True)


PARTITIONERS = {
    "fixed": (FixedShardsPartitioner(5), {"fixed_shards": 5}, 5),
    "least": (MinSizePartitioner(64, max_shards=4), {"min_size": 64, "max_shards": 4}, 4),
    "most": (MaxSizePartitioner(64), {"max_size": 64}, 7),
    "most_of_3": (MaxSizePartitioner(64, max_shards=3), {"max_size": 64, "max_shards": 3}, 3),
}


def test_the_partitioner_of_a_variable_is_recorded_and_shown(tmp_path):
    tree = {
        name: ShardedVariable.split(VALUES, made) for name, (made, _, _) in PARTITIONERS.items()
    }
    tree["counted"] = ShardedVariable.split(VALUES, 3)
    tree["own"] = ShardedVariable.split(VALUES, lambda *_: [2, 1])
    reshard.save(tmp_path / "saved", tree)
    found = reshard.inspect(tmp_path / "saved").tensors
    for name, (made, recorded, shards) in PARTITIONERS.items():
        assert tree[name].partitioner == made
        whole = {"strategy": "div", "axis": 0, "shards": shards, "partitioner": recorded}
        assert (found[name].partition, found[name].shards) == (whole, shards)
    assert found["counted"].partition == {"strategy": "div", "axis": 0, "shards": 3}
    assert found["own"].partition == {"strategy": "div", "axis": 0, "shards": 2}
    assert tree["own"].partitioner is None


def test_a_restored_variable_has_the_partitioner_that_split_it(tmp_path):
    reshard.save(tmp_path / "saved", {"t": VALUES})
    made = MaxSizePartitioner(64)
    found = reshard.restore(tmp_path / "saved", partition=made)["t"]
    assert (found.partitioner, len(found.variables)) == (made, 7)
    assert jax.tree.map(lambda shard: shard, found).partitioner == made


def test_a_mod_table_in_other_shards_loses_the_partitioner(tmp_path):
    table = ShardedVariable.split(VALUES, FixedShardsPartitioner(5), partition_strategy="mod")
    reshard.save(tmp_path / "saved", {"t": table})
    rows = {"partitions": [{"match": "t", "fixed_shards": 6, "axis": 0}]}
    reshard.convert(tmp_path / "saved", tmp_path / "copied")
    reshard.convert(tmp_path / "saved", tmp_path / "rows", layout=rows)
    kept = reshard.inspect(tmp_path / "copied").tensors["t"]
    assert kept.partition["partitioner"] == {"fixed_shards": 5}
    other = reshard.inspect(tmp_path / "rows").tensors["t"]
    assert other.partition == {"strategy": "mod", "axis": 0, "shards": 6}


def test_the_shards_of_a_layout_are_counted(tmp_path):
    reshard.save(tmp_path / "saved", {"net": put(VALUES, None, "model"), "plain": VALUES})
    found = reshard.inspect(tmp_path / "saved").tensors
    assert (found["net"].shards, found["plain"].shards) == (mesh().shape["model"], 1)
