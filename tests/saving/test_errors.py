"""Trees that cannot be saved are refused before anything is written; the error lists every reason."""

from __future__ import annotations

import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import reshard
from tests.orbax_trees import mesh, put
from tests.saving.states import random


@pytest.fixture
def target(tmp_path):
    """A path at which nothing may be, neither during nor after."""
    yield tmp_path / "c"
    assert not list(tmp_path.iterdir())


def refused(error, path, tree, *args, **kwargs):
    with pytest.raises(error) as caught:
        reshard.save(path, tree, *args, **kwargs)
    return str(caught.value)


def test_every_leaf_that_cannot_be_saved_is_named(target):
    gone = jnp.ones(3)
    gone.delete()
    donated = put(random(8, 8), "data")
    jax.block_until_ready(jax.jit(lambda x: x + 1, donate_argnums=0)(donated))
    tree = {
        "good": np.ones(2), "object": object(), "bytes": b"x", "set": {1},
        "nested": [{"array": np.array([None])}, np.array(["a"])], "date": np.datetime64("2026-01-01"),
        "shape": jax.ShapeDtypeStruct((2,), "float32"), "deleted": gone, "donated": donated,
        "huge": 2**70, "masked": np.ma.array([1, 2], mask=[0, 1]), "type": np.float32,
        "uint4": jnp.ones(4, jnp.uint4), "long": np.longdouble(1),
    }  # fmt: skip
    said = refused(reshard.TreeError, target, tree)
    assert said.startswith("14 leaves of the tree cannot be saved:\n")
    for line in (
        "'object' is of type object; expected jax or numpy arrays, ShardedVariables, Python numbers, text or None",
        "'bytes' is of type bytes; expected",
        "'set' is of type set; expected",
        "'nested/0/array' has dtype object, which no checkpoint has",
        "'nested/1' has dtype <U1, which no checkpoint has",
        "'date' has dtype datetime64[D], which no checkpoint has",
        "'shape' is a jax.ShapeDtypeStruct, a shape without data; save the array itself",
        "'deleted' was deleted or donated, so its value is gone",
        "'donated' was deleted or donated, so its value is gone",
        "'huge' is a whole number beyond 64 bits; save it as text",
        "'masked' is a masked array, whose mask would be lost; fill it first",
        "'type' is of type type; expected",
        "'long' has dtype float128, which no checkpoint has",
        "'uint4' has dtype uint4, which zarr3 as TensorStore reads it does not have; cast it first",
    ):
        assert line in said
    assert "'good'" not in said


def test_many_problems_are_counted(target):
    said = refused(reshard.TreeError, target, {f"{n:03d}": object() for n in range(50)})
    assert said.startswith("50 leaves") and said.endswith("… and 30 more")


def test_tracers_are_refused(target):
    @jax.jit
    def step(x):
        reshard.save(target, {"x": x})
        return x

    with pytest.raises(reshard.TreeError, match="'x' is a tracer of jax, which has no value yet"):
        step(jnp.ones(3))


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        ({}, r"the tree is empty \(dict\); expected at least one leaf"),
        ([], r"the tree is empty \(list\)"),
        (None, r"the tree is empty \(NoneType\)"),
        (object(), "'' is of type object; expected jax or numpy arrays"),
        ({"a": {1: 1, "1": 2}}, "cannot be flattened by jax: .*; expected nested containers whose"),
        ({"a/b": 1, "a": {"b": 2}}, r"both have the name 'a/b', so a reader would mix them up; rename one$"),
        ({"a.b": 1, "a": {"b": 2}}, r"both have Orbax's dotted name 'a\.b'"),
        ({"..": np.ones(2)}, "whose part '..' is not a safe file name; rename it or leave it out"),
        ({"a//b": np.ones(2)}, "whose part '' is not a safe file name"),
        ({"_METADATA": np.ones(2)}, "which the checkpoint's own metadata needs; rename it or write with ocdbt"),
        ({"x" * 300: np.ones(2)}, "needs a file name of 300 bytes"),
        ({"\ud800": np.ones(2)}, "is not valid Unicode"),
    ],
)  # fmt: skip
def test_trees_that_no_checkpoint_holds(target, tree, text):
    with pytest.raises(reshard.TreeError, match=text):
        reshard.save(target, tree)


def test_objects_that_fail_to_make_an_array_of_themselves(target):
    class Broken:
        def __array__(self, *_: Any) -> Any:
            raise RuntimeError("no data left")

    class Endless:
        def __jax_array__(self) -> Any:
            return self

    said = refused(reshard.TreeError, target, {"a": Broken(), "b": Endless()})
    assert "'a' cannot be turned into an array: no data left" in said
    assert "Endless; expected jax or numpy arrays" in said


def test_a_tree_in_a_circle(target):
    tree = {"a": [1]}
    tree["a"] += [tree, tree]
    said = refused(reshard.TreeError, target, tree)
    assert "the tree contains itself, or nests more than 256 levels deep (a dict in a list)" in said
    deep = {}
    for _ in range(300):
        deep = {"a": deep, "b": 1}
    assert "nests more than 256 levels deep" in refused(reshard.TreeError, target, deep)
    shared = [np.ones(2)]
    reshard.save(target / "shared", {"a": shared, "b": [shared]})
    shutil.rmtree(target)


def test_unreduced_arrays_hold_no_boxes(target):
    explicit = jax.sharding.Mesh(
        np.array(jax.devices()).reshape(4, 2),
        ("data", "model"),
        axis_types=(AxisType.Explicit,) * 2,
    )
    spec = PartitionSpec("data", unreduced={"model"})
    shards = [jnp.ones((2,), device=d) for d in explicit.devices.flat]
    array = jax.make_array_from_single_device_arrays((8,), NamedSharding(explicit, spec), shards)
    said = refused(reshard.TreeError, target, {"partial": array})
    assert "'partial' cannot be cut into boxes" in said and "unreduced" in said


def test_a_layout_of_another_mesh(target):
    layouts = reshard.LayoutMap(reshard.DeviceMesh((8,), ("x",)))
    layouts["kernel"] = ("x",)
    tree = {"kernel": put(random(8, 8), "data", "model"), "other": put(random(8), "data")}
    said = refused(reshard.TreeError, target, tree, layouts)
    assert "the layout contradicts the shardings of arrays; leave it out" in said
    assert (
        "'kernel' is laid out [data, model] over the mesh (data=4, model=2), not [x] over the mesh (x=8)"
        in said
    )
    assert "'other'" not in said


@pytest.mark.parametrize(
    ("layout", "error", "text"),
    [
        (7, reshard.LayoutError, "layout is 7"),
        ({"b": reshard.TensorLayout(())}, reshard.TreeError, "the layout names 'b', but the tree has no such tensor"),
        ({"a": reshard.TensorLayout(("x",))}, reshard.LayoutError, "has no mesh"),
        ({"a": reshard.TensorLayout(("x",), reshard.DeviceMesh((8,), ("x",)))}, reshard.LayoutError,
         "'a' of shape .3.: dimension 0 of size 3 does not divide into 8 parts"),
    ],
)  # fmt: skip
def test_layouts_that_make_no_sense(target, layout, error, text):
    with pytest.raises(error, match=text):
        reshard.save(target, {"a": np.ones(3)}, layout)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"compression": "lzma"}, reshard.PlanError, "compression 'lzma' is not known"),
        ({"compression": "keep"}, reshard.PlanError, "compression 'keep' is for converting"),
        ({"max_memory": 0}, reshard.PlanError, "max_memory is 0; expected a whole number"),
        ({"max_memory": "much"}, reshard.PlanError, "max_memory: 'much' is not a size"),
        ({"workers": True}, reshard.PlanError, "workers is True"),
        ({"chunk_bytes": -1}, reshard.PlanError, "chunk_bytes is -1"),
        ({"style": "v3"}, reshard.PlanError, "style is 'v3'; expected one of 'v0', 'v1'"),
        ({"timeout": 0}, reshard.PlanError, "timeout is 0; expected seconds"),
        ({"chunks_for": 7}, reshard.LayoutError, "chunks_for is 7; expected a list of LayoutMaps"),
        ({"chunks_for": [None]}, reshard.LayoutError, "chunks_for contains None"),
        ({"chunks_for": ["/nowhere.yaml"]}, reshard.StorageError, "nowhere.yaml"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(target, options, error, text):
    with pytest.raises(error, match=text):
        reshard.save(target, {"a": np.ones(3)}, **options)


@pytest.mark.parametrize(
    ("path", "text"),
    [(7, "the path is 7; expected a path"), ("hdfs://bucket/c", "hdfs://bucket/c"), ("/", "'/'")],
)
def test_paths_that_make_no_sense(path, text):
    with pytest.raises(reshard.ReshardError, match=text):
        reshard.save(path, {"a": np.ones(3)})


def test_a_chunk_that_needs_more_memory_than_allowed(target):
    table = reshard.ShardedVariable.split(random(4096, 64), 4, partition_strategy="mod")
    with pytest.raises(reshard.MemoryBudgetError) as caught:
        reshard.save(target, {"table": table}, max_memory="64KiB")
    need = caught.value.smallest_bytes
    assert (
        "a chunk of 'table' needs 1.00 MiB on its way to disk, more than max_memory of 64.0 KiB"
        in str(caught.value)
    )
    with pytest.raises(reshard.MemoryBudgetError):
        reshard.save(target, {"table": table}, max_memory=need - 1)


def test_the_smallest_memory_that_it_names_is_enough(tmp_path):
    table = reshard.ShardedVariable.split(random(4096, 64), 4, partition_strategy="mod")
    with pytest.raises(reshard.MemoryBudgetError) as caught:
        reshard.save(tmp_path / "c", {"table": table}, max_memory=1)
    reshard.save(tmp_path / "c", {"table": table}, max_memory=caught.value.smallest_bytes)


@pytest.mark.parametrize("wait", [True, False])
def test_a_target_that_exists_is_left_alone(tmp_path, wait):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "mine").write_text("mine")
    with pytest.raises(reshard.TargetExistsError, match="exists already and was left untouched"):
        reshard.save(tmp_path / "c", {"a": np.ones(3)}, wait=wait)
    with pytest.raises(
        reshard.TargetExistsError, match="contains something other than a checkpoint"
    ):
        reshard.save(tmp_path / "c", {"a": np.ones(3)}, wait=wait, overwrite=True)
    assert [p.name for p in tmp_path.rglob("*")] == ["c", "mine"]


def test_a_full_file_system(tmp_path, monkeypatch):
    import errno
    import os

    real = os.pwrite

    def full(fd, data, offset):
        if offset >= 128 << 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(reshard.StorageError, match=r"cannot write .*: No space left on device"):
        reshard.save(tmp_path / "c", {"a": random(512, 512), "b": random(8, 8)})
    assert not list(tmp_path.iterdir())


def test_too_little_space_is_seen_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("reshard.storage.local.store.free_bytes", lambda _: 1000)
    with pytest.raises(
        reshard.StorageError, match=r"needs 1\.00 MiB, but its file system has only 0\.98 KiB"
    ):
        reshard.save(tmp_path / "c", {"a": random(512, 512)})
    assert not list(tmp_path.iterdir())


def test_a_path_below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(reshard.StorageError, match="should be a folder but is none"):
        reshard.save(tmp_path / "file" / "c", {"a": np.ones(3)})


def test_shards_of_other_kinds_are_named_by_their_variable(target):
    table = reshard.ShardedVariable.split(jnp.ones((4, 2)), 2)
    for shard in table.variables:
        shard.delete()
    said = refused(reshard.TreeError, target, {"table": table})
    assert "'table' has a shard that was deleted or donated" in said


def test_a_mesh_of_chunks_for_without_the_axes(target):
    other = reshard.DeviceMesh((8,), ("x",))
    tree = {"w": put(random(512, 512), "data", on=mesh())}
    with pytest.raises(reshard.LayoutError, match="'w' keeps the source's axes"):
        reshard.save(target, tree, chunks_for=[other])


def test_without_jax(target, monkeypatch):
    monkeypatch.setattr("reshard.saving.options.find_spec", lambda _: None)
    with pytest.raises(
        reshard.MissingPackageError,
        match=r"needs jax, .*; run pip install '.\[jax\]' in a checkout of reshard",
    ):
        reshard.save(target, {"a": np.ones(3)})
