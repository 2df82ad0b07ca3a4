"""What reshard.save writes, stock Orbax restores: structure, values, kinds and shardings."""

from __future__ import annotations

import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import v1

import reshard
from reshard.formats.slices.parse import read_slices
from reshard.storage.location import locate
from tests.orbax_trees import as_numpy, mesh, put
from tests.saving.states import assert_same, gspmd, leaves, random, tables, training_state

READERS = {
    "standard": lambda path, target=None: ocp.StandardCheckpointer().restore(path, target),
    "pytree": lambda path: ocp.PyTreeCheckpointer().restore(path),
    "v1": lambda path, target=None: v1.load(path, target) if target else v1.load(path),
}
OURS = {
    "plain": {},
    "v1": {"style": "v1"},
    "ocdbt": {"ocdbt": True},
    "zstd": {"compression": "zstd"},
}

known_warning = pytest.mark.filterwarnings("ignore:Sharding info not provided")


@pytest.fixture(scope="module")
def state():
    return training_state()


@known_warning
@pytest.mark.parametrize("how", OURS)
@pytest.mark.parametrize("reader", READERS)
def test_stock_restores_it_without_a_target(state, tmp_path, reader, how):
    reshard.save(tmp_path / "c", state | {"note": "hello", "a.b": {"c/d": "text"}}, **OURS[how])
    path = tmp_path / "c" / "state" if how == "v1" and reader != "v1" else tmp_path / "c"
    found = READERS[reader](path)
    assert (found["note"], found["a.b"]) == ("hello", {"c/d": "text"})
    assert found["empty"] == {"dict": {}, "list": [], "tuple": (), "state": None}
    assert found["none"] is None
    assert found["pair"]["second"][1] is None
    wanted = leaves(state)
    got = leaves({k: v for k, v in found.items() if k not in ("note", "a.b")})
    assert got.keys() == wanted.keys()
    for name, leaf in wanted.items():
        assert_same(got[name], leaf, name)
    assert [type(found[k]) for k in ("step", "rate", "on")] == [int, float, bool]


@known_warning
def test_it_is_read_as_what_stock_orbax_saved_is_read(state, tmp_path):
    """The same tree saved by stock Orbax gives the same types in the same structure."""
    known = {k: v for k, v in state.items() if k != "z"}  # it refuses Python's complex numbers
    with ocp.StandardCheckpointer() as stock_orbax:
        stock_orbax.save(tmp_path / "stock", known)
        stock_orbax.wait_until_finished()
        reshard.save(tmp_path / "ours", known)
        ours, stock = (stock_orbax.restore(tmp_path / name) for name in ("ours", "stock"))
    assert jax.tree.structure(ours) == jax.tree.structure(stock)
    for (name, a), b in zip(leaves(ours).items(), leaves(stock).values(), strict=True):
        assert type(a) is type(b), name
        assert getattr(a, "sharding", None) == getattr(b, "sharding", None), name


@pytest.mark.parametrize("reader", ["standard", "v1"])
def test_a_target_keeps_optax_and_nnx_structure(state, tmp_path, reader):
    kept = {k: state[k] for k in ("params", "opt", "net", "pair", "rngs")}
    reshard.save(tmp_path / "c", kept)
    line = mesh((8,), ("x",))

    def target(leaf):
        spec = PartitionSpec("x") if leaf.ndim and leaf.shape[0] % 8 == 0 else PartitionSpec()
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(line, spec))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = READERS[reader](tmp_path / "c", jax.tree.map(target, kept))
    assert jax.tree.structure(found) == jax.tree.structure(kept)
    for name, leaf in leaves(kept).items():
        np.testing.assert_array_equal(as_numpy(leaves(found)[name]), as_numpy(leaf), err_msg=name)


@known_warning
def test_a_sharding_without_a_mesh_comes_back_on_the_same_devices(tmp_path):
    array = gspmd()
    reshard.save(tmp_path / "c", {"x": array})
    found = ocp.StandardCheckpointer().restore(tmp_path / "c")["x"]
    assert_same(found, array)
    entry = read_slices(locate(tmp_path / "c")).tensors["x"]
    assert (entry.layout, entry.parts) == (None, (2, 2))


@known_warning
@pytest.mark.parametrize("how", OURS)
def test_sharded_variables_are_one_tensor_in_the_order_of_their_rows(tmp_path, how):
    found = tables()
    reshard.save(tmp_path / "c", found, **OURS[how])
    restored = v1.load(tmp_path / "c")
    for name, table in found.items():
        np.testing.assert_array_equal(restored[name], table.numpy(), err_msg=name)
    assert not reshard.verify(tmp_path / "c").differences


def test_slices_record_the_shards_of_variables(tmp_path):
    reshard.save(tmp_path / "c", tables())
    found = read_slices(locate(tmp_path / "c")).tensors
    assert found["mod"].partition == {"strategy": "mod", "axis": 0, "shards": 5}
    assert found["mod"].parts == (1, 1)  # rows that are dealt out are no boxes
    assert found["mod_columns"].partition == {"strategy": "mod", "axis": 1, "shards": 4}
    assert found["div"].cuts == ((0, 3, 6, 9, 11, 13), (0, 4))
    assert found["columns"].parts == (1, 3)
    assert found["uneven"].cuts == ((0, 3, 4, 8), (0, 6))
    boxes = [(b.start, b.stop) for b in found["with_empty"].boxes]
    assert boxes == [((0, 0), (2, 3)), ((2, 0), (2, 3)), ((2, 0), (7, 3))]


def test_digests_are_those_of_the_row_major_bytes(state, tmp_path):
    from awscrt.checksums import crc64nvme

    reshard.save(tmp_path / "c", state)
    entries = read_slices(locate(tmp_path / "c")).tensors
    for name, leaf in leaves(state).items():
        data = as_numpy(leaf)
        data = data.astype(data.dtype.newbyteorder("<")).tobytes()
        assert entries[name].digest == f"{crc64nvme(data):016x}", name


def test_replicas_are_written_once(tmp_path):
    values = random(512, 1024)
    reshard.save(tmp_path / "c", {"all": put(values), "some": put(values, "model")})
    size = sum(f.stat().st_size for f in (tmp_path / "c").rglob("*") if f.is_file())
    assert 2 * values.nbytes < size < 2 * values.nbytes + 20_000


def test_chunks_are_shards_merged_when_tiny_and_subdivided_when_large(tmp_path):
    tree = {"shards": put(random(2048, 512), "data", "model"), "tiny": put(random(64, 64), "data")}
    reshard.save(tmp_path / "c", tree)
    specs = {n: t.spec.chunk_shape for n, t in reshard.inspect(tmp_path / "c").tensors.items()}
    assert specs == {"shards": (512, 512), "tiny": (64, 64)}
    reshard.save(tmp_path / "d", tree, chunk_bytes="64KiB")
    sizes = [t.spec.chunk_shape for t in reshard.inspect(tmp_path / "d").tensors.values()]
    assert all(np.prod(shape) * 4 <= 64 << 10 for shape in sizes)


def test_memory_kinds_are_recorded(tmp_path):
    on = NamedSharding(mesh(), PartitionSpec("data"), memory_kind="pinned_host")
    reshard.save(tmp_path / "c", {"x": jax.device_put(random(8), on), "y": put(random(8))})
    found = read_slices(locate(tmp_path / "c")).tensors
    assert (found["x"].memory_kind, found["y"].memory_kind) == ("pinned_host", None)


def test_a_layout_is_recorded_of_numpy_arrays(tmp_path):
    layouts = reshard.LayoutMap(reshard.DeviceMesh((4, 2), ("data", "model")))
    layouts["kernel"] = (None, "model")
    tree = {"kernel": random(8, 8), "bias": random(8), "step": 3, "jax": jnp.ones(4)}
    reshard.save(tmp_path / "c", tree, layouts)
    found = read_slices(locate(tmp_path / "c")).tensors
    assert (found["kernel"].layout.axes, found["kernel"].parts) == ((None, "model"), (1, 2))
    assert (found["bias"].layout.axes, found["bias"].parts) == ((None,), (1,))
    assert found["step"].layout is None is found["jax"].layout


def test_a_tree_of_layouts_is_taken_too(tmp_path):
    device_mesh = reshard.DeviceMesh((8,), ("x",))
    layout = {"a": reshard.TensorLayout(("x",), device_mesh), "b": None}
    reshard.save(tmp_path / "c", {"a": random(16, 2), "b": random(3)}, layout)
    found = read_slices(locate(tmp_path / "c")).tensors
    assert (found["a"].parts, found["b"].layout) == ((8, 1), None)
    named = {"a": NamedSharding(mesh((8,), ("y",)), PartitionSpec("y"))}
    reshard.save(tmp_path / "d", {"a": random(16, 2), "b": random(3)}, named)
    assert read_slices(locate(tmp_path / "d")).tensors["a"].layout.device_mesh.axis_names == ("y",)


def test_arrays_that_follow_jax_or_numpy_are_taken(tmp_path):
    class FollowsJax:
        def __jax_array__(self):
            return put(random(8, 2), "data")

    class FollowsNumpy:
        def __array__(self, dtype=None, copy=None):
            return random(3)

    reshard.save(tmp_path / "c", {"j": FollowsJax(), "n": FollowsNumpy()})
    found = {n: t.spec for n, t in reshard.inspect(tmp_path / "c").tensors.items()}
    assert found["j"].layout.axes == ("data",)
    assert found["n"].shape == (3,)


@known_warning
@pytest.mark.parametrize("how", OURS)
@pytest.mark.parametrize("tree", [put(np.ones((8, 8)), "data", "model"), np.arange(4), 7, "text", jax.random.key(3)])  # fmt: skip
def test_a_tree_that_is_one_leaf(tmp_path, tree, how):
    reshard.save(tmp_path / "c", tree, **OURS[how])
    found = READERS["v1" if how == "v1" else "pytree"](tmp_path / "c")
    again = reshard.restore(tmp_path / "c")
    if isinstance(tree, str):
        assert found == again == tree
        return
    assert_same(found, tree, "")
    np.testing.assert_array_equal(as_numpy(again), as_numpy(tree))


def test_a_run_of_one_array(tmp_path):
    reshard.save(tmp_path / "run", np.arange(4), step=7)
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        assert manager.restore(7).tolist() == [0, 1, 2, 3]
    assert reshard.restore(tmp_path / "run", step=7).tolist() == [0, 1, 2, 3]


def test_a_sharded_variable_alone(tmp_path):
    variable = reshard.ShardedVariable([np.ones((2, 2)), np.zeros((1, 2))])
    reshard.save(tmp_path / "c", variable)
    assert ocp.PyTreeCheckpointer().restore(tmp_path / "c").tolist() == [[1, 1], [1, 1], [0, 0]]


def test_empty_arrays_are_saved(tmp_path):
    reshard.save(tmp_path / "c", {"e": np.zeros((0, 4), np.float32), "j": jnp.zeros((3, 0))})
    found = v1.load(tmp_path / "c")
    assert (found["e"].shape, found["j"].shape) == ((0, 4), (3, 0))


def test_a_relative_path_and_overwriting(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reshard.save("c", {"x": np.ones(3)})
    reshard.save(Path("c"), {"x": np.zeros(3)}, overwrite=True)
    np.testing.assert_array_equal(v1.load(tmp_path / "c")["x"], np.zeros(3))
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
