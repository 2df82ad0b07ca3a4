"""``restore(mesh=…)``: the axes that the checkpoint records, over another mesh."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import reshard
from tests.equal import assert_same
from tests.orbax_trees import put, save_standard

P = PartitionSpec
DEVICES = np.array(jax.devices())
TURNED = Mesh(DEVICES[::-1].reshape(4, 2), ("data", "model"))
HALF = Mesh(DEVICES[2:6].reshape(2, 2), ("data", "model"))
MESHES = {
    "text": ("data=4,model=2", Mesh(DEVICES.reshape(4, 2), ("data", "model"))),
    "a mesh of jax": (TURNED, TURNED),
    "some devices": (HALF, HALF),
    "a mesh without devices": (
        reshard.DeviceMesh((1, 8), ("model", "data")),
        Mesh(DEVICES.reshape(1, 8), ("model", "data")),
    ),
}
SPECS = {
    "kernel": P("data", "model"),
    "table": P(("data", "model")),
    "bias": P(),
    "keys": P("data"),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    rng = np.random.default_rng(5)
    tree = {
        "kernel": put(rng.normal(size=(16, 32)).astype(np.float32), "data", "model"),
        "table": put(rng.integers(0, 9, (24, 8)).astype(np.int32), ("data", "model")),
        "bias": put(rng.normal(size=8).astype(np.float32)),
        "keys": put(jax.random.split(jax.random.key(3), 8), "data"),
        "state": np.arange(5),
        "step": 7,
    }
    return save_standard(tmp_path_factory.mktemp("meshes") / "c", tree), tree


def check(found, tree, on, **specs):
    for name, spec in {**SPECS, **specs}.items():
        array, wanted = found[name], NamedSharding(on, spec)
        assert array.sharding.is_equivalent_to(wanted, array.ndim), name
        data, expected = (
            map(jax.random.key_data, (array, tree[name])) if name == "keys" else (array, tree[name])
        )
        assert_same(np.asarray(data), np.asarray(expected), name)


def refused(error, source, **options):
    with pytest.raises(error) as found:
        reshard.restore(source[0], **options)
    return str(found.value)


@pytest.mark.parametrize("mesh, on", MESHES.values(), ids=MESHES)
def test_every_tensor_keeps_its_axes_over_another_mesh(source, mesh, on):
    path, tree = source
    found = reshard.restore(path, mesh=mesh)
    check(found, tree, on)
    assert isinstance(found["state"], np.ndarray)
    assert found["step"] == 7


def test_the_mesh_decides_over_a_template(source):
    path, tree = source
    like = {
        "kernel": jax.ShapeDtypeStruct((16, 32), np.float32),
        "table": jax.ShapeDtypeStruct((24, 8), np.int32, sharding=NamedSharding(TURNED, P())),
        "bias": np.zeros(8, np.float32),
    }
    found = reshard.restore(path, like, mesh=HALF, unexpected="ignore")
    assert found["kernel"].sharding == NamedSharding(HALF, P("data", "model"))
    assert found["table"].sharding == NamedSharding(HALF, P(("data", "model")))
    assert isinstance(found["bias"], np.ndarray)
    assert_same(np.asarray(found["table"]), np.asarray(tree["table"]))


def test_axes_that_the_mesh_lacks_are_refused_or_replicated(source):
    path, tree = source
    text = refused(reshard.LayoutError, source, mesh="data=8")
    assert "'kernel' keeps the source's axes [data, model] over the mesh (data=8)" in text
    assert 'missing_axes="replicate"' in text
    with pytest.warns(reshard.LayoutWarning) as warned:
        found = reshard.restore(path, mesh="data=8", missing_axes="replicate")
    assert [str(w.message) for w in warned] == [
        "the mesh (data=8) has no axis 'model'; what it split is replicated instead"
    ]
    on = Mesh(DEVICES, ("data",))
    check(found, tree, on, kernel=P("data"), table=P("data"))
    reports = []
    reshard.restore(path, mesh="data=8", missing_axes="replicate", report=reports.append)
    assert reports[0].warnings == (str(warned[0].message),)
    assert "missing_axes is 'drop'; expected 'error' or 'replicate'" in refused(
        reshard.LayoutError, source, mesh="data=8", missing_axes="drop"
    )


def test_a_mesh_that_does_not_fit(source):
    uneven = reshard.DeviceMesh((1, 5), ("data", "model"))
    assert "'kernel' of shape [16, 32]: dimension 1 of size 32 does not divide into 5" in refused(
        reshard.LayoutError, source, mesh=uneven, select=["kernel"]
    )
    assert (
        "'bias': the mesh (data=2, model=2) has no devices, and the 8 of jax.devices() do not fill its 4 places"
        in refused(reshard.LayoutError, source, mesh="data=2,model=2")
    )
    assert "mesh is 8; expected a DeviceMesh, a jax.sharding.Mesh or text" in refused(
        reshard.LayoutError, source, mesh=8
    )
    assert "into= was given together with mesh=" in refused(
        reshard.PlanError, source, into={"bias": np.zeros(8, np.float32)}, mesh="data=8"
    )


def test_the_mesh_of_a_layout_file_is_replaced(source):
    path, _ = source
    layout = {"mesh": {"model": 8}, "rules": [{"match": "kernel", "axes": [None, "model"]}]}
    found = reshard.restore(path, layout=layout, mesh=TURNED, select=["kernel", "bias"])
    assert found["kernel"].sharding == NamedSharding(TURNED, P(None, "model"))
    assert found["bias"].sharding.is_equivalent_to(NamedSharding(TURNED, P()), 1)
    with pytest.warns(reshard.LayoutWarning, match="no axis 'model'; what it split is replicated"):
        found = reshard.restore(
            path, layout=layout, mesh="x=8", missing_axes="replicate", select=["kernel"]
        )
    assert found["kernel"].is_fully_replicated
    layouts = reshard.LayoutMap(reshard.DeviceMesh(TURNED))
    assert "a LayoutMap has a mesh of its own; leave 'mesh' out" in refused(
        reshard.LayoutError, source, layout=layouts, mesh="data=8"
    )


def test_a_tree_of_specs_takes_the_mesh(source):
    path, tree = source
    layout = {"kernel": P("model"), "bias": reshard.TensorLayout(("data",)), "table": None}
    chosen = {"select": ["kernel", "bias", "table"]}
    found = reshard.restore(path, layout=layout, mesh=TURNED, **chosen)
    assert found["kernel"].sharding == NamedSharding(TURNED, P("model"))
    assert found["bias"].sharding == NamedSharding(TURNED, P("data"))
    assert_same(np.asarray(found["kernel"]), np.asarray(tree["kernel"]))
    with pytest.warns(reshard.LayoutWarning, match="the mesh .* has no axis 'model'"):
        found = reshard.restore(
            path, layout=layout, mesh="data=8", missing_axes="replicate", **chosen
        )
    assert found["kernel"].is_fully_replicated
    assert "the layout of 'kernel': [model] has no mesh; give one (mesh)" in refused(
        reshard.LayoutError, source, layout=layout, **chosen
    )
    placed = {"kernel": NamedSharding(HALF, P()), "bias": None, "table": None}
    text = refused(reshard.LayoutError, source, layout=placed, mesh=TURNED, **chosen)
    assert "the layout of 'kernel': it has the mesh (data=2, model=2) of its own" in text
