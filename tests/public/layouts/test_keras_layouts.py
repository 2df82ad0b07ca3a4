"""Meshes, layouts and layout maps of Keras are taken wherever this package's own are, and mean the same."""

from __future__ import annotations

import jax
import keras
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import reshard
from tests.equal import assert_same
from tests.orbax_trees import put, save_standard

P = PartitionSpec
DEVICES = jax.devices()[::-1]
NAMES = [f"cpu:{device.id}" for device in DEVICES]
ON = Mesh(np.array(DEVICES).reshape(2, 4), ("data", "model"))
MESH = keras.distribution.DeviceMesh((2, 4), ["data", "model"], NAMES)
OURS = reshard.DeviceMesh((2, 4), ("data", "model"), DEVICES)


def layouts(kind, mesh):
    made = kind(mesh)
    made["dense/kernel"] = (None, "model")
    made["dense/bias"] = ("model",)
    return made


THEIRS = layouts(keras.distribution.LayoutMap, MESH)
TREE = {
    "dense": {
        "kernel": keras.distribution.TensorLayout((None, "model"), MESH),
        "bias": keras.distribution.TensorLayout(("model",), MESH),
    }
}
LAYOUTS = {"a layout map": THEIRS, "a tree": TREE}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    rng = np.random.default_rng(1)
    tree = {"dense": {"kernel": put(rng.normal(size=(8, 16)).astype("f4"), "data", "model"),
                      "bias": put(rng.normal(size=16).astype("f4"), "model")}}  # fmt: skip
    return save_standard(tmp_path_factory.mktemp("keras") / "c", tree), tree


def layouts_of(path):
    return {
        n: (t.spec.layout.axes, t.spec.layout.device_mesh)
        for n, t in reshard.inspect(path).tensors.items()
    }  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_restore(source, layout):
    path, tree = source
    found = reshard.restore(path, layout=layout)["dense"]
    assert found["kernel"].sharding == NamedSharding(ON, P(None, "model"))
    assert found["bias"].sharding == NamedSharding(ON, P("model"))
    assert_same(np.asarray(found["kernel"]), np.asarray(tree["dense"]["kernel"]))


def test_restore_over_a_mesh(source):
    found = reshard.restore(source[0], mesh=MESH)["dense"]["kernel"]
    assert found.sharding == NamedSharding(ON, P("data", "model"))
    bare = {"dense": keras.distribution.TensorLayout(("model",))}
    found = reshard.restore(source[0], layout=bare, mesh=MESH)["dense"]["bias"]
    assert found.sharding == NamedSharding(ON, P("model"))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_convert_plan_and_previews(source, tmp_path, layout):
    path, own = source[0], layouts(reshard.LayoutMap, OURS)
    reshard.convert(path, tmp_path / "theirs", layout=layout)
    reshard.convert(path, tmp_path / "ours", layout=own)
    assert layouts_of(tmp_path / "theirs") == layouts_of(tmp_path / "ours")
    assert reshard.plan(path, layout=layout).tensors == reshard.plan(path, layout=own).tensors
    theirs, ours = (reshard.preview_layout(path, each) for each in (layout, own))
    assert theirs.tensors == ours.tensors


def test_a_mesh_of_a_conversion_and_of_a_starter(source, tmp_path):
    path = source[0]
    reshard.convert(path, tmp_path / "t", mesh=MESH)
    assert layouts_of(tmp_path / "t")["dense/kernel"] == (("data", "model"), OURS.recorded)
    assert reshard.starter_layout(path, mesh=MESH) == reshard.starter_layout(path, mesh=OURS)


def test_shards_as_streams(source):
    opened = reshard.open_checkpoint(source[0])
    theirs, ours = (
        b"".join(opened.stream_shard(3, each))
        for each in (THEIRS, layouts(reshard.LayoutMap, OURS))
    )
    assert theirs == ours


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_save(tmp_path, layout):
    tree = {"dense": {"kernel": np.ones((8, 16), "f4"), "bias": np.ones(16, "f4")}}
    reshard.save(tmp_path / "c", tree, layout=layout, chunks_for=[MESH, THEIRS])
    assert layouts_of(tmp_path / "c") == {
        "dense/kernel": ((None, "model"), OURS.recorded),
        "dense/bias": (("model",), OURS.recorded),
    }


def test_meshes_and_layouts_of_this_package_are_made_of_them():
    assert reshard.DeviceMesh(MESH) == OURS
    assert reshard.TensorLayout(("data",), MESH).device_mesh == OURS
    made = reshard.LayoutMap(MESH)
    made["a"] = keras.distribution.TensorLayout((None, "model"))
    made["b"] = keras.distribution.TensorLayout(("data",), MESH)
    assert made["a"] == reshard.TensorLayout((None, "model"), OURS)
    assert made["b"] == reshard.TensorLayout(("data",), OURS)


def test_distribute_tensor():
    found = reshard.distribute_tensor(np.ones((8, 8)), TREE["dense"]["bias"])
    assert found.sharding == NamedSharding(ON, P("model"))


def test_a_layout_without_a_mesh_says_so(source):
    bare = keras.distribution.TensorLayout(("model",))
    with pytest.raises(reshard.LayoutError, match="has no mesh, and so no devices; give it one"):
        reshard.restore(source[0], layout=bare)
    with pytest.raises(reshard.LayoutError, match="a LayoutMap has a mesh of its own"):
        reshard.restore(source[0], layout=THEIRS, mesh=MESH)
