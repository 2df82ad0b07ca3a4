"""Whole checkpoints through a file map, restored by stock Orbax v0 and v1, bit for bit."""

import json
import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint import v1

from reshard.formats.slices.parse import read_slices
from reshard.formats.slices.slice_file import digest_of
from reshard.layout.device_mesh import DeviceMesh
from reshard.storage.location import locate
from tests.formats.orbax.write.reading import READERS, assert_same
from tests.orbax_warnings import warnings_of

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")

KEY = {
    "value_metadata": {"value_type": "jax.Array", "skip_deserialize": False, "write_shape": [9]},
    "ext_metadata": {"random_key_impl": "threefry2x32"},
}


def kind(value_type, *, skip=False, **more):
    return {"value_metadata": {"value_type": value_type, "skip_deserialize": skip}, **more}


def mesh_of(shape, *axes):
    return Mesh(np.array(jax.devices()).reshape(shape), axes)


def key_data(*shape):
    return np.asarray(jax.random.key_data(jax.random.split(jax.random.key(7), shape)))


@pytest.fixture
def state(making):
    e = making.Entry
    return {
        "kernel": e(("params", "dense", "kernel"), np.arange(128, dtype="f4").reshape(16, 8), ("data", "model")),
        "both": e(("params", "both"), np.arange(64, dtype=ml_dtypes.bfloat16).reshape(8, 8), (("data", "model"), None)),
        "whole": e(("params", "whole"), np.arange(5, dtype="i4"), ()),
        "host": e(("params", "host"), np.arange(5, dtype="i8")),
        "lone": e(("params", "lone"), np.arange(5, dtype="u2"), meta=kind("jax.Array")),
        "scalar": e(("scale",), np.float32(0.1), ()),
        "int": e(("steps",), np.int64(3), (), meta=kind("scalar")),
        "empty": e(("nothing",), np.zeros((0, 4), "f4"), (None, "model")),
        "padded": e(("blocks", 0), np.arange(6, dtype="i1"), ("model",), chunk=(4,)),
        "small": e(("blocks", 1), np.arange(4, dtype=ml_dtypes.int4), ("model",)),
        "dots": e(("a.b", "c/d"), np.arange(8, dtype="f2"), ("data",)),
        "text": e(("note",), meta=kind("string", string="hello")),
        "text2": e(("notes/all",), meta=kind("string", string="world")),
        "none": e(("opt", "none"), meta=kind("None", skip=True)),
        "dict": e(("opt", "dict"), meta=kind("Dict", skip=True)),
        "key": e(("rng",), key_data(), (), meta=KEY),
        "keys": e(("rngs",), key_data(8), ("data", None), meta=KEY),
    }  # fmt: skip


@pytest.mark.parametrize("ocdbt", [False, True])
@pytest.mark.parametrize("reader", READERS)
def test_stock_restores_it_without_a_target(making, state, tmp_path, reader, ocdbt):
    path = making.write(tmp_path / "ckpt", list(state.values()), ocdbt=ocdbt)
    found = READERS[reader](path)
    mesh = mesh_of((4, 2), "data", "model")

    def sharded(value, *spec):
        assert value.sharding == NamedSharding(mesh, PartitionSpec(*spec))
        return value

    params = found["params"]
    assert_same(sharded(params["dense"]["kernel"], "data", "model"), state["kernel"].value)
    assert_same(sharded(params["both"], ("data", "model"), None), state["both"].value)
    assert_same(sharded(params["whole"]), state["whole"].value)
    assert isinstance(params["host"], np.ndarray)
    assert_same(params["host"], state["host"].value)
    assert isinstance(params["lone"], jax.Array)
    assert params["lone"].devices() == {jax.devices()[0]}
    assert_same(params["lone"], state["lone"].value)
    assert_same(sharded(found["scale"]), np.asarray(state["scalar"].value))
    assert found["steps"] == 3
    assert type(found["steps"]) is int
    assert_same(sharded(found["nothing"], None, "model"), state["empty"].value)
    assert_same(sharded(found["blocks"][0], "model"), state["padded"].value)
    assert_same(sharded(found["blocks"][1], "model"), state["small"].value)
    assert_same(sharded(found["a.b"]["c/d"], "data"), state["dots"].value)
    assert (found["note"], found["notes/all"], found["opt"]) == (
        "hello",
        "world",
        {"none": None, "dict": {}},
    )
    for name, entry in (("rng", "key"), ("rngs", "keys")):
        assert jax.dtypes.issubdtype(found[name].dtype, jax.dtypes.prng_key)
        assert_same(jax.random.key_data(found[name]), state[entry].value)
    assert found["rngs"].sharding.spec == PartitionSpec("data")


@pytest.mark.parametrize("ocdbt", [False, True])
@pytest.mark.parametrize("reader", ["standard", "v1"])
def test_stock_restores_it_onto_another_mesh(making, tmp_path, reader, ocdbt):
    value = np.arange(128, dtype=np.float32).reshape(16, 8)
    entries = [
        making.Entry(("w",), value, ("data", "model")),
        making.Entry(("rngs",), key_data(8), ("data",), meta=KEY),
    ]
    path = making.write(tmp_path / "ckpt", entries, ocdbt=ocdbt)
    sharding = NamedSharding(mesh_of((8,), "x"), PartitionSpec("x"))
    key = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 8))
    target = {
        "w": jax.ShapeDtypeStruct((16, 8), "float32", sharding=sharding),
        "rngs": jax.ShapeDtypeStruct((8,), key.dtype, sharding=sharding),
    }
    found = READERS[reader](path, target)
    assert found["w"].sharding == sharding
    assert_same(found["w"], value)
    assert_same(jax.random.key_data(found["rngs"]), entries[1].value)


@pytest.mark.parametrize("reader", ["standard", "v1"])
def test_optax_states_come_back_into_their_namedtuples(making, tmp_path, reader):
    params = {"w": jnp.arange(8, dtype=jnp.float32)}
    target = optax.adam(1e-3).init(params)
    entries = [
        making.Entry((0, "count"), np.int32(4), ()),
        making.Entry((0, "mu", "w"), np.arange(8, dtype="f4"), ("model",)),
        making.Entry((0, "nu", "w"), np.arange(8, 16, dtype="f4"), ("model",)),
        making.Entry((1,), meta=kind("None", skip=True)),
    ]
    path = making.write(tmp_path / "ckpt", entries)
    found = READERS[reader](path, target)
    assert isinstance(found[0], optax.ScaleByAdamState)
    assert found[0].count == 4
    assert_same(found[0].nu["w"], entries[2].value)


@pytest.mark.parametrize("reader", READERS)
def test_a_list_with_gaps_comes_back_as_a_dict(making, tmp_path, reader):
    entries = [making.Entry(("l", i), np.full(2, i, "i1"), ()) for i in (0, 2, 10)]
    found = READERS[reader](making.write(tmp_path / "ckpt", entries))
    assert {k: v.tolist() for k, v in found["l"].items()} == {
        "0": [0, 0],
        "2": [2, 2],
        "10": [10, 10],
    }


def test_a_longer_list_keeps_its_order(making, tmp_path):
    entries = [making.Entry(("l", i), np.full(2, i, "i1"), ()) for i in range(11)]
    found = v1.load(making.write(tmp_path / "ckpt", entries))
    assert [v.tolist()[0] for v in found["l"]] == list(range(11))


@pytest.mark.parametrize("types", [("Auto", "Explicit"), ("AxisType.Auto", "AxisType.Explicit")])
def test_axis_types_are_recorded(making, tmp_path, types):
    mesh = DeviceMesh((4, 2), ("data", "model"), axis_types=types)
    entry = making.Entry(("w",), np.zeros((8, 4), "f4"), ("data",), mesh=mesh)
    found = v1.load(making.write(tmp_path / "ckpt", [entry]))["w"]
    assert found.sharding.mesh.axis_types == (
        jax.sharding.AxisType.Auto,
        jax.sharding.AxisType.Explicit,
    )


def test_a_numpy_array_that_is_split_comes_back_sharded(making, tmp_path):
    meta = kind("np.ndarray")
    entries = [
        making.Entry(("split",), np.arange(8), ("data",), meta=meta),
        making.Entry(("whole",), np.arange(8), (), meta=meta),
    ]
    found = v1.load(making.write(tmp_path / "ckpt", entries))
    assert found["split"].sharding.spec == PartitionSpec("data")
    assert isinstance(found["whole"], np.ndarray)


def test_slice_metadata_is_stored_beside_the_checkpoint(making, state, tmp_path):
    path = making.write(tmp_path / "ckpt", list(state.values()))
    file = read_slices(locate(path))
    assert set(file.tensors) == {e.leaf.name for e in state.values() if e.value is not None}
    kernel = file.tensors["params/dense/kernel"]
    assert (kernel.dtype, kernel.parts, kernel.layout) == (
        "float32",
        (4, 2),
        state["kernel"].target.spec.layout,
    )
    assert file.tensors["params/host"].layout is None
    assert len(kernel.digest) == 16
    on_disk = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}
    chunks = {n for n in on_disk if re.search(r"/c[./0-9]*$", n)}
    assert len(chunks) > len(file.tensors)
    assert set(file.files) == on_disk - chunks - {"slices.json"}
    assert file.data_files == {}
    assert all(
        digest_of((path / name).read_bytes()) == digest for name, digest in file.files.items()
    )


@pytest.mark.parametrize(
    ("shards", "split"), [(3, ((0, 4, 7, 10), (0, 2))), (5, (5, 1)), (1, (1, 1))]
)
def test_partitions_and_memory_kinds_are_recorded(making, tmp_path, shards, split):
    partition = {"strategy": "fixed_shards", "fixed_shards": shards, "axis": 0, "shards": shards}
    entry = making.Entry(
        ("table",), np.zeros((10, 2), "f4"), (None, None),
        partition=partition, meta={"memory_kind": "pinned_host"},
    )  # fmt: skip
    found = read_slices(locate(making.write(tmp_path / "ckpt", [entry]))).tensors["table"]
    assert (found.partition, found.memory_kind) == (partition, "pinned_host")
    assert split in (found.cuts, found.parts)
    assert len(list(found.boxes)) == shards


def test_written_again_it_is_the_same_but_for_time_stamps(making, state, tmp_path):
    paths = [making.write(tmp_path / name, list(state.values())) for name in "ab"]
    making.write(tmp_path / "b", list(state.values()))
    first, second = (
        {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file()}
        for path in paths
    )
    assert first.keys() == second.keys()
    stamped = {"_CHECKPOINT_METADATA", "slices.json"}  # the second holds the digest of the first
    assert {str(n) for n in first if first[n] != second[n]} == stamped


def test_a_database_written_again_restores(making, tmp_path):
    entry = making.Entry(("w",), np.arange(8, dtype="f4"), ("data",))
    for _ in range(2):
        path = making.write(tmp_path / "ckpt", [entry], ocdbt=True)
    assert v1.load(path)["w"].tolist() == list(range(8))


def test_more_devices_than_the_mesh_need_a_target(making, tmp_path):
    entry = making.Entry(("w",), np.arange(8, dtype="f4"), ("x",), mesh=DeviceMesh((4,), ("x",)))
    path = making.write(tmp_path / "ckpt", [entry])
    with pytest.raises(ValueError, match="Topology mismatch"):
        READERS["standard"](path)
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:4]), ("x",)), PartitionSpec("x"))
    target = {"w": jax.ShapeDtypeStruct((8,), "float32", sharding=sharding)}
    for reader in ("standard", "v1"):
        assert_same(READERS[reader](path, target)["w"], entry.value)


def test_an_old_write_shape_is_replaced(making, tmp_path):
    path = making.write(
        tmp_path / "ckpt", [making.Entry(("rngs",), key_data(8), ("data",), meta=KEY)]
    )
    leaf = json.loads((path / "_METADATA").read_bytes())["tree_metadata"]["('rngs',)"]
    assert leaf["value_metadata"]["write_shape"] == [2, 2]
    arrays = json.loads((path / "array_metadatas" / "process_0").read_bytes())["array_metadatas"]
    assert arrays == [{"array_metadata": {
        "param_name": "rngs", "write_shape": [2, 2], "chunk_shape": [2, 2],
        "ext_metadata": {"random_key_impl": "threefry2x32"},
    }}]  # fmt: skip


def test_stock_warns_of_nothing_it_does_not_warn_of_in_its_own(making, tmp_path):
    sharding = NamedSharding(mesh_of((4, 2), "data", "model"), PartitionSpec("data"))
    tree = {"w": jax.device_put(np.arange(8, dtype="f4"), sharding)}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "own", tree)
    entry = making.Entry(("w",), np.arange(8, dtype="f4"), ("data",))
    plain = making.write(tmp_path / "plain", [entry])
    packed = making.write(tmp_path / "ocdbt", [entry], ocdbt=True)
    damaged = Path(shutil.copytree(plain, tmp_path / "damaged"))
    (damaged / "array_metadatas" / ".zarray").unlink()
    own, *ours, told = warnings_of(tmp_path / "own", plain, packed, damaged)
    assert any("Sharding info not provided" in line for line in own)
    assert [found - own for found in ours] == [set(), set()]
    assert any("data files not found" in line for line in told)
