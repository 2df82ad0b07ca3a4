"""Bad input: every refusal names the tensor, and comes before a byte of it is read."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import reshard
from reshard import DeviceMesh, LayoutMap, TensorLayout
from tests.orbax_trees import mesh, save_pytree
from tests.restoring.recorded import record


@pytest.fixture
def source(tmp_path):
    tree = {"w": np.zeros((6, 4), np.float32), "b": np.zeros(4, np.float32), "n": 1}
    return save_pytree(tmp_path / "c", tree, use_ocdbt=False, use_compression=False)


def refused(error, path, *arguments, **options):
    with pytest.raises(error) as found:
        reshard.restore(path, *arguments, **options)
    assert isinstance(found.value, reshard.ReshardError)
    return str(found.value)


def on(mesh_shape, axes, pattern="w"):
    layouts = LayoutMap(DeviceMesh(mesh_shape, ("x", "y")[: len(mesh_shape)]))
    layouts[pattern] = axes
    return layouts


def test_a_mesh_of_other_devices_than_there_are(source):
    text = refused(reshard.LayoutError, source, layout=on((3,), ("x",)), select=["w"])
    assert (
        "'w': the mesh (x=3) has no devices, and the 8 of jax.devices() do not fill its 3 places"
        in text
    )
    text = refused(reshard.LayoutError, source, layout=on((16,), (None,)))
    assert "16 places" in text


def test_a_dimension_that_does_not_divide(source):
    text = refused(reshard.LayoutError, source, layout=on((2, 4), ("y",)))
    assert "'w' of shape [6, 4]: dimension 0 of size 6 does not divide into 4 parts" in text
    sharding = NamedSharding(mesh((4,), ("x",)), PartitionSpec("x"))
    text = refused(reshard.LayoutError, source, layout={"w": sharding, "b": None, "n": None})
    assert "'w' of shape [6, 4] cannot be split by NamedSharding" in text


def test_more_axes_than_dimensions(source):
    text = refused(reshard.LayoutError, source, layout=on((8,), (None, None, "x")))
    assert (
        "'w' has 2 dimensions (shape [6, 4]), but its layout [null, null, x] has more axes" in text
    )


def test_a_layout_without_a_mesh(source):
    text = refused(reshard.LayoutError, source, layout=TensorLayout(("x",)))
    assert "has no mesh, and so no devices; give it one" in text


def test_a_tree_of_layouts_that_does_not_fit_names_everything(source):
    text = refused(reshard.TreeError, source, layout={"w": None, "v": None, "u": None})
    assert (
        "without a sharding in the tree of layouts: 1 (None leaves a tensor on jax's default device)\n    b\n"
        in text
    )
    assert "named by the tree of layouts, but not restored: 2\n    u\n    v" in text


def test_what_is_no_layout(source):
    assert "layout is 7; expected a LayoutMap, the path or content" in refused(
        reshard.LayoutError, source, layout=7
    )
    assert "layout is 'x' at 'w'; expected" in refused(
        reshard.LayoutError, source, layout={"w": "x"}
    )
    assert "missing.yaml" in refused(reshard.StorageError, source, layout="missing.yaml")


def test_two_keys_of_a_layout_map_for_one_tensor(source):
    layouts = on((8,), (None, None), "w$")
    layouts["^w"] = (None, None)
    assert "'w' matches multiple layout specification keys" in refused(
        reshard.LayoutError, source, layout=layouts
    )


def test_rules_that_match_nothing_or_cannot_be(source):
    assert "select 'z' matches none" in refused(reshard.PlanError, source, select=["z"])
    assert "cast is 'bfloat16'; expected pairs" in refused(
        reshard.PlanError, source, cast="bfloat16"
    )
    assert "float to int is done only when asked for by name" in refused(
        reshard.PlanError, source, cast=[(".", "int32")], drop=["n"]
    )
    assert "no such dtype" in refused(reshard.PlanError, source, cast=[("w", "float33")])
    assert "missing is 'ignore'; expected one of 'error', 'keep'" in refused(
        reshard.PlanError, source, missing="ignore"
    )
    assert "unexpected is 'keep'; expected one of 'error', 'ignore'" in refused(
        reshard.PlanError, source, unexpected="keep"
    )
    assert "max_memory is 0; expected" in refused(reshard.PlanError, source, max_memory=0)


def test_a_place_without_a_checkpoint(tmp_path):
    assert "does not exist" in refused(reshard.StorageError, tmp_path / "none")
    assert "is not a checkpoint" in refused(reshard.NotACheckpointError, tmp_path)
    assert "the checkpoint is 5; expected a path" in refused(reshard.StorageError, 5)


def test_a_checkpoint_that_lacks_a_requested_leaf(source):
    text = refused(
        reshard.TreeError, source, {"model": {"w": jax.ShapeDtypeStruct((6, 4), jnp.float32)}}
    )
    assert "asked for, but not in the checkpoint: 1" in text
    assert "model/w (float32 of shape [6, 4])" in text
    assert "in the checkpoint, but not asked for: 3" in text


def test_keys_of_another_kind_are_refused(tmp_path):
    path = save_pytree(tmp_path / "c", {"k": jax.random.key(0), "w": np.zeros(2, np.uint32)})
    other = jax.random.key(0, impl="rbg")
    text = refused(reshard.TreeError, path, {"k": other, "w": jax.random.key(0)})
    assert "k has PRNG keys key<fry>, but key<rbg> is asked for" in text
    assert "w is uint32 of shape [2], but PRNG keys (key<fry>) are asked for" in text
    text = refused(reshard.PlanError, path, cast=[("k", "float32")])
    assert "is a PRNG key: its bits have no numeric meaning" in text


def test_damaged_bytes_are_found_by_the_recorded_digest(source):
    arrays = reshard.restore(source)
    record(source, {"w": arrays["w"], "b": arrays["b"]})
    reports = []
    reshard.restore(source, report=reports.append)
    assert reports[0].verified == 2
    chunk = next((source / "w").glob("[0-9]*"))
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"\x01")
    text = refused(reshard.CorruptError, source)
    assert "tensor 'w': its bytes have the digest" in text
    assert "was recorded when it was written" in text
    assert reshard.restore(source, verify=False)["w"][-1, -1] != 0
    refused(reshard.CorruptError, source, layout=on((2, 4), (None, "y")))
    assert "'w'" in refused(reshard.CorruptError, source, partition={"w": 3})


def test_a_truncated_chunk_names_tensor_and_chunk(source):
    chunk = next((source / "w").glob("[0-9]*"))
    chunk.write_bytes(chunk.read_bytes()[:-9])
    text = refused(reshard.CorruptError, source, layout=on((2, 4), (None, "y")))
    assert "tensor 'w', chunk [0, 0]" in text


def test_nothing_is_read_before_everything_fits(source, monkeypatch):
    monkeypatch.setattr("reshard.restoring.restore.read_boxes", pytest.fail)
    refused(reshard.TreeError, source, {"w": np.zeros((6, 4), np.float32)})
    refused(reshard.LayoutError, source, layout=on((3,), ("x",)))
    refused(reshard.MemoryBudgetError, source, max_memory="1KiB")
