"""Layouts as jax users hold them: meshes, PartitionSpecs, trees of shardings, structs and live states."""

from __future__ import annotations

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    SingleDeviceSharding,
)

import reshard
from reshard import preview_layout
from tests.orbax_trees import save_standard

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")

P = PartitionSpec
TURNED = Mesh(np.array(jax.devices()[::-1]).reshape(2, 4), ("data", "model"))
ALL = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
OURS = reshard.DeviceMesh((2, 4), ("data", "model"), axis_types=("Auto", "Auto"))


@pytest.fixture(scope="module")
def state():
    model = nnx.Linear(16, 8, rngs=nnx.Rngs(0))
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    return {
        "params": params,
        "opt": optax.adam(1e-3).init(params),
        "rng": jax.random.split(jax.random.key(0), 4),
    }


@pytest.fixture(scope="module")
def saved(state, tmp_path_factory):
    path = save_standard(tmp_path_factory.mktemp("jax") / "c", state)
    reshard.fingerprint(path)  # no notice that it records no digests
    return path


def planned(source, **asked):
    return reshard.plan(source, f"{source}-planned", **asked)


def shardings(state, mesh):
    """A tree of NamedShardings of the state's own structure."""
    return jax.tree.map(
        lambda leaf: NamedSharding(mesh, P("data") if leaf.ndim == 2 else P()), state
    )


def structs(state, mesh):
    return jax.tree.map(
        lambda leaf, s: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=s),
        state,
        shardings(state, mesh),
    )


def live(state, mesh):
    return jax.tree.map(jax.device_put, state, shardings(state, mesh))


def assert_placed(path, state, mesh):
    """Stock Orbax restores every array, without a target, as the tree of shardings says."""
    found = ocp.StandardCheckpointer().restore(path)
    places = jax.tree.leaves(shardings(state, mesh))
    for array, leaf, place in zip(
        jax.tree.leaves(found), jax.tree.leaves(state), places, strict=True
    ):
        assert array.sharding.is_equivalent_to(place, array.ndim)
        assert array.sharding.mesh.devices.tolist() == place.mesh.devices.tolist()
        assert jnp.array_equal(array, leaf)


@pytest.mark.parametrize("mesh", [ALL, TURNED], ids=["in order", "turned"])
@pytest.mark.parametrize("form", [shardings, structs, live])
def test_a_tree_of_what_jax_users_hold(saved, state, tmp_path, form, mesh):
    layout = form(state, mesh)
    plan = planned(saved, layout=layout)
    assert plan.warnings == ()
    reshard.convert(saved, tmp_path / "one", layout=layout)
    assert_placed(tmp_path / "one", state, mesh)
    assert reshard.convert(saved, tmp_path / "one", layout=form(state, mesh)).already_done
    reshard.convert_all(saved, [reshard.Target(tmp_path / "two", layout=layout)])
    assert_placed(tmp_path / "two", state, mesh)
    kernel = {t.target: t for t in preview_layout(saved, layout).tensors}["params/kernel"]
    assert kernel.slices.parts == (2, 1)
    restored = reshard.restore(saved, layout=layout)
    assert restored["params"]["kernel"].sharding == NamedSharding(mesh, P("data"))


def test_a_leaf_stands_for_everything_below_it(saved, tmp_path):
    reshard.convert(saved, tmp_path / "one", layout=NamedSharding(TURNED, P()))
    assert reshard.inspect(tmp_path / "one").device_meshes[0].device_ids == tuple(range(7, -1, -1))
    tree = {"params": {"kernel": NamedSharding(ALL, P("data")), "bias": None}, "opt": SingleDeviceSharding(jax.devices()[2]),
            "rng": NamedSharding(ALL, P("model"))}  # fmt: skip
    reshard.convert(saved, tmp_path / "two", layout=tree)
    found = ocp.StandardCheckpointer().restore(tmp_path / "two")
    assert found["params"]["kernel"].sharding == NamedSharding(ALL, P("data", None))
    assert found["params"]["bias"].devices() == {jax.devices()[0]}
    assert {d for leaf in jax.tree.leaves(found["opt"]) for d in leaf.devices()} == {
        jax.devices()[2]
    }
    assert found["rng"].sharding == NamedSharding(ALL, P("model"))


def test_partition_specs_over_a_mesh_of_jax(saved, state, tmp_path):
    specs = jax.tree.map(lambda leaf: P("data") if leaf.ndim == 2 else P(), state)
    reshard.convert(saved, tmp_path / "one", layout=specs, mesh=TURNED)
    assert_placed(tmp_path / "one", state, TURNED)
    with pytest.raises(
        reshard.LayoutError, match=r"^the layout of 'opt/.*': .* has no mesh; give one \(mesh\)"
    ):
        planned(saved, layout=specs)
    line = Mesh(np.array(jax.devices()), ("model",))
    with pytest.raises(reshard.LayoutError, match="'data' not in the mesh"):
        planned(saved, layout=specs, mesh=line)
    plan = planned(saved, layout=specs, mesh=line, missing_axes="replicate")
    assert any(
        "has no axis 'data'; what it split is replicated instead" in w for w in plan.warnings
    )


def test_a_mesh_of_jax_wherever_a_mesh_is_taken(saved, tmp_path):
    assert reshard.DeviceMesh(ALL) == reshard.DeviceMesh.from_jax(ALL)
    assert reshard.DeviceMesh(AbstractMesh((2, 4), ("data", "model"))) == OURS
    assert reshard.DeviceMesh(ALL.abstract_mesh, devices=jax.devices()) == reshard.DeviceMesh(ALL)
    assert reshard.TensorLayout(("data",), ALL).device_mesh == reshard.DeviceMesh(ALL)
    explicit = Mesh(np.array(jax.devices()), ("model",), axis_types=(AxisType.Explicit,))
    reshard.convert(saved, tmp_path / "one", mesh=explicit)
    assert reshard.inspect(tmp_path / "one").device_meshes == (
        reshard.DeviceMesh((8,), ("model",), axis_types=["Explicit"]),
    )
    reshard.convert(
        saved,
        tmp_path / "two",
        layout={"rules": [{"match": "kernel$", "axes": ["data"]}]},
        mesh=TURNED,
    )
    assert reshard.inspect(tmp_path / "two").device_meshes[0].device_ids == tuple(range(7, -1, -1))
    reshard.save(tmp_path / "three", {"w": jnp.zeros((8, 8))}, chunks_for=[TURNED])
    with pytest.raises(
        reshard.LayoutError, match=r"^mesh is 8; expected a DeviceMesh, a jax.sharding.Mesh or text"
    ):
        planned(saved, mesh=8)


def test_partition_specs_in_a_layout_map(saved, tmp_path):
    layouts = reshard.LayoutMap(TURNED)
    layouts["kernel$"] = P("data", None)
    layouts["bias$"] = NamedSharding(ALL, P("model"))
    assert layouts["kernel"] == reshard.TensorLayout(("data", None), reshard.DeviceMesh(TURNED))
    assert layouts["bias"].device_mesh == reshard.DeviceMesh(ALL)
    reshard.convert(saved, tmp_path / "one", layout=layouts)
    found = ocp.StandardCheckpointer().restore(tmp_path / "one")["params"]
    assert found["kernel"].sharding == NamedSharding(TURNED, P("data", None))
    with pytest.raises(reshard.LayoutError, match=r"^'rng': .*leaves a dimension unconstrained"):
        layouts["rng"] = P(P.UNCONSTRAINED)
    with pytest.raises(
        reshard.LayoutError, match=r"^'rng': invalid axis names .*'seq' not in the mesh"
    ):
        layouts["rng"] = P("seq")


def changed(tree, name, value):
    return {**tree, "params": {**tree["params"], name: value}}


def test_a_tree_that_does_not_fit_is_refused(saved, state, tmp_path):
    tree, as_structs = shardings(state, ALL), structs(state, ALL)
    del (lacking := {**tree, "params": dict(tree["params"])})["params"]["bias"]
    wide = jax.ShapeDtypeStruct((16, 9), "float32", sharding=NamedSharding(ALL, P()))
    half = jax.ShapeDtypeStruct((16, 8), "bfloat16", sharding=NamedSharding(ALL, P()))
    for layout, words in (
        (
            lacking,
            "the tree of layouts says nothing of 'params/bias'; add a leaf for this tensor",
        ),
        (
            changed(as_structs, "kernel", wide),
            "'params/kernel' has shape [16, 8], but [16, 9] in the tree of layouts",
        ),
        (
            changed(as_structs, "kernel", half),
            "'params/kernel' is float32, but bfloat16 in the tree of layouts; cast it",
        ),
        (
            changed(tree, "kernel", object),
            "the layout of 'params/kernel': expected a TensorLayout, a jax sharding",
        ),
        (
            changed(tree, "bias", NamedSharding(ALL, P(None, "model"))),
            "'params/bias' has 1 dimensions",
        ),
    ):
        with pytest.raises(reshard.LayoutError) as caught:
            reshard.convert(saved, tmp_path / "out", layout=layout)
        assert words in str(caught.value)
        assert not (tmp_path / "out").exists()
    with pytest.raises(reshard.LayoutError, match="of its own; leave 'mesh' out"):
        planned(saved, layout=tree, mesh="data=8")
    reshard.convert(
        saved,
        tmp_path / "out",
        layout=changed(as_structs, "kernel", half),
        cast={"params/kernel": "bfloat16"},
    )
    extra = {**tree, "ema": NamedSharding(ALL, P())}
    assert planned(saved, layout=extra).warnings == (
        "the leaf 'ema' of the tree of layouts matches no tensor",
    )


def test_what_is_no_layout_at_all(saved):
    circle = {}
    circle["a"] = circle
    for layout in (5, object(), [1, 2], circle):
        with pytest.raises(reshard.LayoutError):
            planned(saved, layout=layout)


def test_plain_layouts_load_no_jax(saved):
    code = (
        "import sys, json, reshard; reshard.plan(sys.argv[1], sys.argv[1] + '-planned', layout={'mesh': {'data': 2}, 'rules': []}); "
        "print(json.dumps('jax' in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(saved)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) is False
