"""Restoring as numpy arrays, compared with stock Orbax."""

from __future__ import annotations

import json

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

import reshard
from tests.equal import assert_same, assert_same_trees
from tests.fresh_process import run_fresh
from tests.orbax_trees import dtype_tree, expected_arrays, save_modes, save_pytree, small_tree


@pytest.mark.parametrize("save", [s for _, s in save_modes()], ids=[i for i, _ in save_modes()])
def test_every_way_of_saving_gives_the_same_arrays(save, tmp_path):
    tree = small_tree()
    path, reports = save(tmp_path / "checkpoint", tree), []
    found = expected_arrays(reshard.restore(path, report=reports.append))
    expected = expected_arrays(tree)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert_same(found[name], array, name)
    assert reports[0].amplification == 1.0
    assert reports[0].tensors == len(expected)


def test_the_tree_is_what_stock_orbax_restores(small):
    ours = reshard.restore(small)
    theirs = ocp.StandardCheckpointer().restore(small)
    as_numpy = jax.tree.map(
        lambda leaf: (
            np.asarray(leaf) if isinstance(leaf, jax.Array) and not _is_key(leaf) else leaf
        ),
        theirs,
    )
    assert_same_trees(ours, as_numpy)
    assert ours["key"].dtype == theirs["key"].dtype
    assert isinstance(ours["params"]["dense"]["kernel"], np.ndarray)
    assert ours["empty"] == {"dict": {}, "list": [], "tuple": ()}
    assert ours["none"] is None


def _is_key(leaf):
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def test_strings_numbers_and_booleans_come_back_as_what_they_were(tmp_path):
    tree = {"text": "hello", "yes": True, "n": 2**40, "x": 0.1, "a": np.arange(3)}
    found = reshard.restore(save_pytree(tmp_path / "c", tree))
    assert_same_trees(found, tree)


def test_every_dtype_keeps_its_bits(tmp_path):
    tree = dtype_tree()
    found = reshard.restore(save_pytree(tmp_path / "c", tree, use_zarr3=True))
    assert_same_trees(found, tree)


def test_restored_arrays_can_be_written_to(small):
    kernel = reshard.restore(small)["params"]["dense"]["kernel"]
    kernel[0, 0] = 5
    assert kernel.flags.writeable
    assert kernel.flags.c_contiguous


def test_chunks_that_were_not_stored_hold_what_fills_them(tmp_path):
    tree = {"zeros": np.zeros((64, 4), np.float32)}
    path = save_pytree(tmp_path / "c", tree, use_ocdbt=False)
    _leave_out_chunks(path)
    reports = []
    assert_same_trees(reshard.restore(path, report=reports.append), tree)
    assert reports[0].read_bytes == 0


def _leave_out_chunks(path):
    """As writers do that do not store what equals the fill value."""
    metadata = json.loads((path / "_METADATA").read_text())
    metadata["store_array_data_equal_to_fill_value"] = False
    (path / "_METADATA").write_text(json.dumps(metadata))
    for chunk in (path / "zeros").glob("[0-9]*"):
        chunk.unlink()


def test_select_drop_rename_and_cast(small):
    found = reshard.restore(
        small,
        select=["^params/"],
        drop=["layers/1$"],
        rename=[("^params/", "model/")],
        cast=[("kernel$", "bfloat16"), ("bias$", "float16")],
    )
    tree = small_tree()["params"]
    assert found["model"]["dense"]["kernel"].dtype == "bfloat16"
    kernel = np.asarray(tree["dense"]["kernel"].astype("bfloat16"))
    assert_same(found["model"]["dense"]["kernel"], kernel)
    assert found["model"]["dense"]["bias"].dtype == np.float16
    assert_same(found["model"]["layers"][0], tree["layers"][0])
    assert len(found["model"]["layers"]) == 1
    assert set(found) == {"model"}


def test_a_cast_says_what_it_lost(tmp_path):
    path = save_pytree(tmp_path / "c", {"w": np.array([1.0, 1e9, 1.001], np.float32)})
    reports = []
    found = reshard.restore(path, cast=[("w", "float16")], report=reports.append)
    assert found["w"].dtype == np.float16
    assert reports[0].casts["w"].overflows == 1


def test_several_trees_in_one_checkpoint_stand_side_by_side(tmp_path):
    from orbax.checkpoint import v1

    v1.save_checkpointables(
        tmp_path / "c", {"model": {"w": np.ones(3)}, "opt": {"mu": [np.zeros(2)]}}
    )
    assert_same_trees(
        reshard.restore(tmp_path / "c"), {"model": {"w": np.ones(3)}, "opt": {"mu": [np.zeros(2)]}}
    )
    assert_same_trees(
        reshard.restore(tmp_path / "c", select=["^opt/"]), {"opt": {"mu": [np.zeros(2)]}}
    )


def test_what_is_left_of_a_list_with_a_gap_is_a_dict(tmp_path):
    path = save_pytree(tmp_path / "c", {"layers": [np.zeros(1), np.ones(1), np.full(1, 2.0)]})
    found = reshard.restore(path, drop=["layers/1"])
    assert_same_trees(found, {"layers": {"0": np.zeros(1), "2": np.full(1, 2.0)}})


def test_progress_ends_with_everything(small):
    steps = []
    reshard.restore(small, progress=steps.append)
    assert steps[-1].moved_bytes == steps[-1].total_bytes > 0
    assert steps[-1].stage == "restoring"


WITHOUT_JAX = """
    import json, sys
    sys.modules["jax"] = None  # as if it were not installed
    import reshard
    reports, refused = [], ""
    found = reshard.restore(sys.argv[1], report=reports.append)
    try:
        reshard.restore(sys.argv[1], partition=2)
    except reshard.MissingPackageError as error:
        refused = str(error)
    key = found["key"]
    print(json.dumps([sorted(found), found["count"], [type(key).__name__, str(key.dtype), key.tolist()],
                      "key" in reports[0].numpy, refused]))
"""


def test_numpy_arrays_need_no_jax_and_keys_come_back_as_their_data(small):
    names, count, key, is_reported, shards = run_fresh(WITHOUT_JAX, str(small)).printed
    assert "params" in names
    assert count == 7
    data = np.asarray(jax.random.key_data(reshard.restore(small)["key"]))
    assert key == ["ndarray", "uint32", data.tolist()]
    assert is_reported
    assert (
        "a partition make jax arrays; run pip install '.[jax]' in a checkout of reshard" in shards
    )
