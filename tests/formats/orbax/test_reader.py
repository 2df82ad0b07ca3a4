"""Stock Orbax writes in every mode; the reader finds every chunk, decoded here by other code."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint import v1

from reshard.formats.contents import PathKey
from reshard.formats.format import PlaceNames
from reshard.formats.orbax.container import marks_of
from reshard.formats.orbax.reader import ChunkFiles, open_orbax
from reshard.formats.registry import open_reader
from reshard.storage.location import locate
from tests.equal import assert_same
from tests.formats.orbax.decode import read_tensor
from tests.orbax_trees import (
    dtype_tree,
    expected_arrays,
    mesh,
    put,
    save_manager,
    save_manager_items,
    save_modes,
    save_pytree,
    save_standard,
    save_v1,
    small_tree,
)

MODES = save_modes()


@pytest.fixture(scope="module")
def tree():
    return small_tree()


@pytest.mark.parametrize("save", [s for _, s in MODES], ids=[i for i, _ in MODES])
def test_every_tensor_is_found_bit_for_bit(save, tree, tmp_path):
    path = save(tmp_path / "checkpoint", tree)
    assert marks_of(PlaceNames(locate(path))) == "top"
    reader = open_orbax(locate(path).view())
    expected = expected_arrays(tree)
    assert set(reader.tensors) == set(expected)
    for name, array in expected.items():
        assert_same(read_tensor(reader, name), array, name)


@pytest.mark.parametrize("use_ocdbt", [True, False])
@pytest.mark.parametrize("use_zarr3", [True, False])
def test_every_dtype(use_ocdbt, use_zarr3, tmp_path):
    arrays = dtype_tree()
    save_pytree(tmp_path / "c", arrays, use_ocdbt=use_ocdbt, use_zarr3=use_zarr3)
    reader = open_orbax(locate(tmp_path / "c").view())
    assert {n: t.spec.dtype for n, t in reader.tensors.items()} == {n: n for n in arrays}
    for name, array in arrays.items():
        assert_same(read_tensor(reader, name), array, name)


def test_leaves_paths_and_metadata(tree, tmp_path):
    save_pytree(tmp_path / "c", {**tree, "text": "hello", "by/slash": {"deep": "wörld"}})
    reader = open_orbax(locate(tmp_path / "c").view())
    leaves = {leaf.name: leaf for leaf in reader.leaves}
    assert leaves["opt/0/mu/a.b/c/d"].path == (
        PathKey("opt"), PathKey("0", is_sequence=True), PathKey("mu"), PathKey("a.b"), PathKey("c/d"),
    )  # fmt: skip
    assert leaves["params/dense/kernel"].meta["value_metadata"] == {
        "value_type": "jax.Array", "skip_deserialize": False, "write_shape": [16, 32],
    }  # fmt: skip
    assert leaves["text"].meta["string"] == "hello"
    assert leaves["by/slash/deep"].meta["string"] == "wörld"
    assert leaves["key"].meta["ext_metadata"] == {"random_key_impl": "threefry2x32"}
    assert leaves["count"].meta["ext_metadata"] is None
    kinds = {
        n: leaves[n].meta["value_metadata"]["value_type"] for n in leaves if not leaves[n].tensor
    }
    assert kinds == {
        "text": "string", "by/slash/deep": "string", "none": "None", "empty/dict": "Dict",
        "empty/list": "List", "empty/tuple": "Tuple", "opt/1": "None",
    }  # fmt: skip
    assert [n for n, t in reader.tensors.items() if t.is_key] == ["key", "keys"]
    assert all(not leaf.item for leaf in reader.leaves)


def test_layouts_on_several_meshes(tree, tmp_path):
    reader = open_orbax(locate(save_standard(tmp_path / "c", tree)).view())
    layouts = {name: tensor.spec.layout for name, tensor in reader.tensors.items()}
    kernel = layouts["params/dense/kernel"]
    assert kernel.axes == ("data", "model")
    assert kernel.device_mesh.shape == (4, 2)
    assert kernel.device_mesh.axis_names == ("data", "model")
    assert kernel.device_mesh.axis_types == ("Auto", "Auto")
    assert layouts["params/layers/0"].axes == (("data", "model"), None)
    assert layouts["other_mesh"].device_mesh.shape == (8,)
    assert layouts["one_device"] is None
    assert layouts["numpy"] is None
    assert layouts["params/dense/bias"].device_mesh is kernel.device_mesh or (
        layouts["params/dense/bias"].device_mesh == kernel.device_mesh
    )


def test_storage_grid_is_not_inferred_from_the_sharding(tmp_path):
    save_standard(tmp_path / "c", {"bias": put(np.arange(8, dtype=np.float32), "model")})
    spec = open_orbax(locate(tmp_path / "c").view()).tensors["bias"].spec
    assert spec.chunk_shape == (1,)
    assert spec.storage.parts == (8,)
    assert spec.slices.parts == (2,)


def test_inner_chunks_of_a_shard_are_the_storage_grid(tmp_path):
    array = np.arange(64, dtype=np.float32).reshape(8, 8)
    save_pytree(tmp_path / "c", {"x": array}, use_zarr3=True, chunk_byte_size=32)
    reader = open_orbax(locate(tmp_path / "c").view())
    assert reader.tensors["x"].spec.storage.count == 8
    assert_same(read_tensor(reader, "x"), array)


def test_manager_step_with_items(tree, tmp_path):
    path = save_manager_items(tmp_path / "run", tree)
    reader = open_orbax(locate(path).view())
    items = {item.name: item for item in reader.container.items}
    assert reader.container.style == "v0"
    assert (items["state"].is_tree, items["state"].directory) == (True, "state")
    assert items["state"].handler.endswith("PyTreeCheckpointHandler")
    assert items["meta"].is_tree is False
    assert items["meta"].handler.endswith("JsonCheckpointHandler")
    times = [reader.container.meta[f"{n}_timestamp_nsecs"] for n in ("init", "commit")]
    assert 1e18 < times[0] < times[1]
    assert {k: v for k, v in reader.container.meta.items() if "timestamp" not in k} == {
        "metrics": {},
        "performance_metrics": {},
        "custom_metadata": {},
    }
    assert items["metrics"].is_tree is False
    assert "params/dense/kernel" in reader.tensors
    assert {leaf.item for leaf in reader.leaves} == {"state"}


def test_one_item_of_a_step_opens_by_itself(tree, tmp_path):
    path = save_manager(tmp_path / "run", tree)
    reader = open_orbax(locate(path / "default").view())
    assert reader.container.items[0].name == ""
    assert set(reader.tensors) == set(expected_arrays(tree))


def test_several_trees_prefix_their_names(tmp_path):
    first, second = {"w": np.arange(3)}, {"w": np.arange(4.0)}
    v1.save_checkpointables(tmp_path / "v1", {"state": first, "ema": second})
    with ocp.CheckpointManager(tmp_path / "v0", item_names=("state", "ema")) as manager:
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(first), ema=ocp.args.StandardSave(second)
        )
        manager.save(0, args=args)
        manager.wait_until_finished()
    for path, style in ((tmp_path / "v1", "v1"), (tmp_path / "v0" / "0", "v0")):
        reader = open_orbax(locate(path).view())
        assert reader.container.style == style
        assert set(reader.tensors) == {"state/w", "ema/w"}
        assert_same(read_tensor(reader, "ema/w"), second["w"])
        assert {leaf.name: leaf.item for leaf in reader.leaves} == {
            "state/w": "state",
            "ema/w": "ema",
        }


def test_custom_metadata_and_rich_types_are_kept(tree, tmp_path):
    custom = {"run": [1, {"key": "a", "key_type": 2}], "value_type": 3}
    save_pytree(tmp_path / "c", tree, rich_types=True, custom_metadata=custom)
    (item,) = open_orbax(locate(tmp_path / "c").view()).container.items
    assert item.meta["custom_metadata"] == custom
    assert '"ScaleByAdamState"' in item.meta["value_metadata_tree"]


def test_a_bare_array(tmp_path):
    array = np.arange(5, dtype=np.int16)
    save_pytree(tmp_path / "v0", array)
    save_v1(tmp_path / "v1", array)
    for path in ("v0", "v1"):
        reader = open_orbax(locate(tmp_path / path).view())
        assert list(reader.tensors) == [""]
        assert_same(read_tensor(reader, ""), array)


def test_bare_arrays_among_several_trees_are_named_like_their_item(tmp_path):
    v1.save_checkpointables(tmp_path / "c", {"a": np.arange(3), "b": {"x": np.arange(2)}})
    reader = open_orbax(locate(tmp_path / "c").view())
    assert set(reader.tensors) == {"a", "b/x"}
    assert_same(read_tensor(reader, "a"), np.arange(3))


def test_chunks_that_equal_the_fill_value_may_be_missing(tmp_path, monkeypatch):
    from orbax.checkpoint._src.serialization import tensorstore_utils

    monkeypatch.setattr(tensorstore_utils, "STORE_ARRAY_DATA_EQUAL_TO_FILL_VALUE", False)
    array = np.zeros((8, 4), np.float32)
    array[0] = 1
    arrays = {"x": put(array, "data"), "z": np.zeros(3, np.int8)}
    save_pytree(tmp_path / "c", arrays, use_zarr3=True)
    reader = open_orbax(locate(tmp_path / "c").view())
    assert reader.tensors["x"].may_be_missing
    assert reader.locate("z", (0,)) is None
    assert_same(read_tensor(reader, "x"), array)
    assert_same(read_tensor(reader, "z"), np.zeros(3, np.int8))


def test_stored_values_are_shared_by_threads(tree, tmp_path):
    save_pytree(tmp_path / "c", tree, use_zarr3=True, use_ocdbt=False, chunk_byte_size=40)
    reader = open_orbax(locate(tmp_path / "c").view())
    expected = expected_arrays(tree)
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda name: read_tensor(reader, name), [*expected] * 3)
        for name, array in zip([*expected] * 3, found, strict=True):
            assert_same(array, expected[name], name)


def test_metadata_is_priced(tree, tmp_path):
    save_standard(tmp_path / "c", tree)
    reader = open_orbax(locate(tmp_path / "c").view())
    assert 4 << 20 < reader.metadata_bytes < 5 << 20


def test_extents_pickle(tree, tmp_path):
    reader = open_orbax(locate(save_standard(tmp_path / "c", tree)).view())
    extent = reader.locate("params/dense/kernel", (0, 0))
    assert pickle.loads(pickle.dumps(extent)) == extent
    assert extent.path.startswith(str(tmp_path / "c" / "ocdbt.process_0" / "d"))


def test_detection_opens_orbax_by_path_and_url(tree, tmp_path):
    save_standard(tmp_path / "c", tree)
    assert open_reader(str(tmp_path / "c")).format == "orbax"
    assert open_reader(f"file://{tmp_path}/c").container.style == "v0"


def test_axis_types_are_kept(tmp_path):
    explicit = jax.make_mesh((2, 4), ("x", "y"), (jax.sharding.AxisType.Explicit,) * 2)
    save_standard(tmp_path / "c", {"a": put(np.zeros((4, 8)), "x", "y", on=explicit)})
    layout = open_orbax(locate(tmp_path / "c").view()).tensors["a"].spec.layout
    assert layout.device_mesh.axis_types == ("Explicit", "Explicit")
    assert mesh().axis_types != explicit.axis_types


def chunks_of(path):
    return ChunkFiles(open_orbax(locate(path).view()).chunks.items)


@pytest.mark.parametrize("zarr3", [False, True])
def test_exactly_the_chunks_of_a_checkpoint(tmp_path, zarr3):
    path = save_pytree(tmp_path / "c", small_tree(), use_ocdbt=False, use_zarr3=zarr3)
    chunks = chunks_of(path)
    names = [str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()]
    others = [n for n in names if n not in chunks]
    assert {n.rpartition("/")[2] for n in others} <= {
        ".zarray", "zarr.json", "_METADATA", "_sharding", "_CHECKPOINT_METADATA",
        "commit_success.txt", "process_0",
    }  # fmt: skip
    assert len(others) < len(names)


@pytest.mark.parametrize("name", ["w/1.0", "w/00.0", "w/0", "w/0.0.0", "w/c/0/0", "x/0.0", "w", ""])
def test_what_only_looks_like_a_chunk_is_none(tmp_path, name):
    save_pytree(tmp_path / "c", {"w": np.zeros((3, 4))}, use_ocdbt=False)
    chunks = chunks_of(tmp_path / "c")
    assert "w/0.0" in chunks
    assert name not in chunks


def test_a_database_has_none(tmp_path):
    path = save_manager_items(tmp_path / "run", small_tree())
    chunks = chunks_of(path)
    assert not any(str(p.relative_to(path)) in chunks for p in path.rglob("*"))
