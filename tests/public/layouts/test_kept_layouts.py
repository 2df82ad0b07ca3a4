"""A kept layout is kept whole: stock Orbax restores a conversion onto the very devices of its source."""

from __future__ import annotations

import json
import re

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint import v1

import reshard
from reshard.cli.app import run
from reshard.formats.slices.parse import read_slices
from reshard.storage.location import locate
from tests.fresh_process import run_fresh
from tests.orbax_trees import save_manager, save_pytree, save_standard, save_v1

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")

P = PartitionSpec
ORDER = [7, 3, 1, 5, 0, 2, 4, 6]


def on(ids, shape, names, types=None):
    """A mesh of the devices with these ids."""
    devices = np.array([jax.devices()[i] for i in ids]).reshape(shape)
    return Mesh(devices, names, axis_types=types)


def state():
    """Arrays on meshes of another order, of fewer devices, of Explicit axes, and on one device."""
    mixed, few = on(ORDER, (4, 2), ("data", "model")), on([5, 4, 1, 0], (4,), ("x",))
    explicit = on(range(8), (2, 4), ("data", "model"), (AxisType.Explicit, AxisType.Auto))
    params = {
        "mixed": jax.device_put(np.arange(64.0, dtype="f4").reshape(8, 8), NamedSharding(mixed, P("data", "model"))),
        "few": jax.device_put(np.arange(16.0, dtype="f4"), NamedSharding(few, P("x"))),
        "explicit": jax.device_put(np.ones((4, 8), "f4"), NamedSharding(explicit, P(None, ("data", "model")))),
        "lone": jax.device_put(np.arange(5.0, dtype="f4"), jax.devices()[3]),
    }  # fmt: skip
    keys = jax.device_put(jax.random.split(jax.random.key(1), 8), NamedSharding(mixed, P("data")))
    return {"params": params, "opt": optax.adam(1e-3).init(params), "keys": keys, "step": 7}


def save_ours(path, tree):
    reshard.save(path, tree)
    return path


SAVERS = {
    "v0": save_standard,
    "zarr2": lambda path, tree: save_pytree(path, tree, use_ocdbt=False),
    "step": save_manager,
    "v1": save_v1,
    "ours": save_ours,
}
READERS = {
    "v0": lambda path: ocp.StandardCheckpointer().restore(path),
    "v1": lambda path: v1.load(path),
}


def arrays(tree):
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    named = {"/".join(re.findall(r"\w+", jax.tree_util.keystr(path))): a for path, a in flat}
    return {name: a for name, a in named.items() if isinstance(a, jax.Array)}


def assert_same_places(found, wanted):
    found, wanted = arrays(found), arrays(wanted)
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        sharding = found[name].sharding
        assert sharding == array.sharding, name
        assert sharding._device_assignment == array.sharding._device_assignment, name
        if isinstance(sharding, NamedSharding):
            assert sharding.mesh.axis_types == array.sharding.mesh.axis_types, name


@pytest.fixture(scope="module", params=SAVERS)
def saved(request, tmp_path_factory):
    tree = state()
    return SAVERS[request.param](tmp_path_factory.mktemp(request.param) / "c", tree), tree


CONVERSIONS = {
    "as it is": {},
    "ocdbt": {"ocdbt": True},
    "kept codecs": {"compression": "keep"},
    "cast": {"cast": [("mixed$", "bfloat16"), ("lone$", "float16")]},
    "layout of changes only": {"layout": {"cast": [{"match": "few$", "dtype": "bfloat16"}]}},
}


@pytest.mark.parametrize("how", CONVERSIONS)
def test_every_tensor_comes_back_where_it_was(saved, tmp_path, how):
    path, tree = saved
    reshard.convert(path, tmp_path / "out", **CONVERSIONS[how])
    step, style = tmp_path / "out" / "default", reshard.inspect(tmp_path / "out").style
    folder = step if step.is_dir() else tmp_path / "out"
    readers = ["v1"] if style == "v1" else ["v0"] if step.is_dir() else ["v0", "v1"]
    for reader in readers:
        found = READERS[reader](folder)
        assert_same_places({**found, "opt": 0}, {**tree, "opt": 0})
        assert_same_places({"": jax.tree.leaves(found["opt"])}, {"": jax.tree.leaves(tree["opt"])})


def test_also_after_a_second_conversion_in_the_other_style(tmp_path):
    tree = state()["params"]
    save_standard(tmp_path / "a", tree)
    reshard.convert(tmp_path / "a", tmp_path / "b", style="v1")
    reshard.convert(tmp_path / "b", tmp_path / "c", style="v0")
    assert_same_places(READERS["v1"](tmp_path / "b"), tree)
    assert_same_places(READERS["v0"](tmp_path / "c"), tree)


def test_renamed_tensors_and_parts_keep_their_places(tmp_path):
    tree = state()
    save_standard(tmp_path / "a", tree)
    rename = [("^params/(.*)", r"model/\1_")]
    reshard.convert(tmp_path / "a", tmp_path / "b", select=["^params/"], rename=rename)
    wanted = {"model": {f"{k}_": array for k, array in tree["params"].items()}}
    for reader in READERS.values():
        assert_same_places(reader(tmp_path / "b"), wanted)


def test_slices_and_inspect_show_the_devices(tmp_path, capsys):
    save_standard(tmp_path / "a", state()["params"])
    reshard.convert(tmp_path / "a", tmp_path / "b")
    for name in "ab":
        meshes = {
            m.axis_names: m for m in reshard.inspect(tmp_path / name).device_meshes if m.size == 4
        }
        assert meshes["x",].device_ids == (5, 4, 1, 0)
    recorded = json.loads((tmp_path / "b" / "slices.json").read_bytes())["meshes"].values()
    assert {
        "axes": ["data", "model"], "shape": [4, 2], "axis_types": ["Auto", "Auto"], "device_ids": ORDER,
    } in recorded  # fmt: skip
    assert run(["inspect", str(tmp_path / "b")]) == 0
    shown = capsys.readouterr().out
    assert "data=4, model=2 (8 devices: 7, 3, 1, 5, 0, 2, 4, 6)" in shown
    assert "data=2, model=4 (8 devices), axis types: data Explicit" in shown


def test_the_memory_kind_is_kept_with_the_layout(tmp_path):
    sharding = NamedSharding(on(range(8), (8,), ("x",)), P("x"), memory_kind="pinned_host")
    reshard.save(tmp_path / "a", {"w": jax.device_put(np.arange(8.0, dtype="f4"), sharding)})
    reshard.convert(tmp_path / "a", tmp_path / "b", cast={"w": "bfloat16"})
    reshard.convert(tmp_path / "a", tmp_path / "c", mesh="x=8")
    kinds = [read_slices(locate(tmp_path / name)).tensors["w"].memory_kind for name in "abc"]
    assert kinds == ["pinned_host", "pinned_host", None]


def device_meshes(path):
    """The recorded ``device_mesh`` of each array, in the order of their names."""
    shardings = json.loads((path / "_sharding").read_text())
    return [json.loads(text).get("device_mesh") for _, text in sorted(shardings.items())]


@pytest.mark.parametrize(
    "asked",
    [
        {"mesh": "data=4,model=2"},
        {"layout": {"mesh": {"axes": ["data", "model"], "shape": [4, 2]},
                    "rules": [{"match": "mixed", "axes": ["data", "model"]}]}},
        {"layout": reshard.LayoutMap(reshard.DeviceMesh((4, 2), ("data", "model")))},
    ],
    ids=["mesh", "file", "map"],
)  # fmt: skip
def test_a_mesh_that_is_asked_for_is_a_new_one_even_if_equal(tmp_path, asked):
    tree = {k: v for k, v in state()["params"].items() if k in ("mixed", "lone")}
    save_standard(tmp_path / "a", tree)
    reshard.convert(tmp_path / "a", tmp_path / "b", **asked)
    assert device_meshes(tmp_path / "b") == [None, None]
    found = READERS["v0"](tmp_path / "b")
    for array in found.values():
        assert [d.id for d in array.sharding.mesh.devices.flat] == list(range(8))


def test_a_mesh_that_says_its_devices_is_recorded_with_them(tmp_path):
    tree = {"mixed": state()["params"]["mixed"]}
    save_standard(tmp_path / "a", tree)
    source_mesh = reshard.inspect(tmp_path / "a").device_meshes[0]
    reshard.convert(tmp_path / "a", tmp_path / "b", mesh=source_mesh)
    assert_same_places(READERS["v0"](tmp_path / "b"), tree)
    placed = reshard.DeviceMesh((2, 2), ("data", "model"), jax.devices()[6:2:-1])
    reshard.convert(tmp_path / "a", tmp_path / "c", mesh=placed)
    found = READERS["v0"](tmp_path / "c")["mixed"]
    assert [d.id for d in found.sharding.mesh.devices.flat] == [6, 5, 4, 3]


def test_a_mesh_of_other_devices_is_another_conversion(tmp_path):
    save_standard(tmp_path / "a", {"mixed": state()["params"]["mixed"]})
    one, other = (
        reshard.DeviceMesh((4, 2), ("data", "model"), device_ids=ids)
        for ids in (ORDER, ORDER[::-1])
    )
    reshard.convert(tmp_path / "a", tmp_path / "b", mesh=one)
    assert reshard.convert(tmp_path / "a", tmp_path / "b", mesh=one).already_done
    with pytest.raises(reshard.TargetExistsError):
        reshard.convert(tmp_path / "a", tmp_path / "b", mesh=other)


def test_many_devices_are_part_of_what_a_budget_must_hold(tmp_path):
    """Orbax wants the devices named for each tensor anew, so that text is counted."""
    save_pytree(tmp_path / "a", {f"w{i:03}": np.zeros(8, "f4") for i in range(200)})
    wide = reshard.DeviceMesh((4096,), ("x",), device_ids=range(4096))
    with_ids = reshard.plan(tmp_path / "a", tmp_path / "b", mesh=wide).metadata_bytes
    without = reshard.plan(tmp_path / "a", tmp_path / "b", mesh=wide.abstract).metadata_bytes
    assert with_ids - without == 20 * 4096 * 200
    reshard.convert(
        tmp_path / "a", tmp_path / "c", layout={"mesh": {"axes": ["x"], "shape": [4096]}}
    )


FEWER = """
import os, sys, json
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=" + sys.argv[2]
os.environ["JAX_PLATFORMS"] = "cpu"
import jax, orbax.checkpoint as ocp
from orbax.checkpoint import v1
def ids(restore):
    try:
        return [d.id for d in restore()["w"].sharding._device_assignment]
    except Exception as error:
        return type(error).__name__ + ": " + str(error)[:34]
mesh = jax.sharding.Mesh(jax.devices()[:4], ("x",))
place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
target = {"w": jax.ShapeDtypeStruct((8,), "float32", sharding=place)}
v0 = ocp.StandardCheckpointer()
found = [ids(lambda: v0.restore(sys.argv[1])), ids(lambda: v1.load(sys.argv[1])),
         ids(lambda: v0.restore(sys.argv[1], target)), ids(lambda: v1.load(sys.argv[1], target))]
print(json.dumps(found))
"""
"""Restores ``w``, without and with a target, on a host with so many devices."""


def test_what_stock_orbax_needs_where_there_are_more_devices_than_places(tmp_path):
    save_pytree(tmp_path / "a", {"w": np.arange(8, dtype="f4")})
    rules = [{"match": "w", "axes": ["x"]}]
    for name, ids in (("new", {}), ("named", {"device_ids": [0, 1, 2, 3]})):
        mesh = {"axes": ["x"], "shape": [4], **ids}
        reshard.convert(tmp_path / "a", tmp_path / name, layout={"mesh": mesh, "rules": rules})
    here = [0, 1, 2, 3]
    on_four = run_fresh(FEWER, str(tmp_path / "new"), "4").printed
    on_eight = run_fresh(FEWER, str(tmp_path / "new"), "8").printed
    named = run_fresh(FEWER, str(tmp_path / "named"), "8").printed
    assert on_four == [here] * 4
    assert on_eight == [
        "ValueError: Topology mismatch detected. The ch",
        "ValueError: sharding passed to deserialization",
        here,
        here,
    ]
    assert named == [here] * 4


def test_a_layout_that_is_given_is_recorded_also_where_the_source_records_none(tmp_path):
    """Stock Orbax then restores onto its mesh; an array of numpy that no axis splits stays one, which any host restores."""
    wanted = {"w": np.arange(64.0, dtype="f4").reshape(8, 8), "b": np.ones(4, "f4")}
    save_pytree(tmp_path / "numpy", wanted)
    save_pytree(tmp_path / "jax", jax.tree.map(jax.numpy.asarray, wanted))
    (tmp_path / "jax" / "_sharding").unlink()
    reshard.convert(tmp_path / "numpy", tmp_path / "hf", to="safetensors")
    layout = reshard.LayoutMap(reshard.DeviceMesh((8,), ("x",)))
    layout["w"] = ("x", None)
    for source in ("numpy", "jax", "hf"):
        assert not (tmp_path / source / "_sharding").exists()
        target = tmp_path / f"{source}-8"
        reshard.convert(tmp_path / source, target, to="orbax", layout=layout)
        found = ocp.PyTreeCheckpointer().restore(target)
        jax.tree.map(np.testing.assert_array_equal, found, wanted)
        assert found["w"].sharding.spec == P("x", None)
        assert len(found["w"].sharding.device_set) == 8
        assert isinstance(found["b"], np.ndarray) == (source == "numpy")
