"""A real CheckpointManager whose steps have slice metadata, restored with stock Orbax alone."""

from __future__ import annotations

import json

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

import reshard
from reshard.formats.slices.parse import read_slices
from reshard.saving.orbax_manager import SliceRestore, SliceSave
from reshard.storage.location import locate
from tests.orbax_trees import put
from tests.saving.states import assert_same, leaves, random, training_state

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")


def test_every_step_has_slices_and_stock_restores_the_latest(tmp_path):
    state = {k: v for k, v in training_state().items() if k != "z"}
    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=True)
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        for step in (1, 2, 3):
            manager.save(step, args=SliceSave(state | {"step": step}))
        manager.wait_until_finished()
        assert manager.all_steps() == [2, 3]
        assert manager.restore(3)["step"] == 3
    with ocp.CheckpointManager(tmp_path) as stock:
        found = stock.restore(stock.latest_step())
    for name, leaf in leaves(state | {"step": 3}).items():
        assert_same(leaves(found)[name], leaf, name)
    recorded = json.loads((tmp_path / "3" / "_CHECKPOINT_METADATA").read_text())
    assert recorded["item_handlers"]["default"].endswith("StandardCheckpointHandler")


def test_what_is_recorded_is_what_is_stored(tmp_path):
    state = {"w": put(random(64, 32), "data", "model"), "b": put(random(8)), "n": random(3, 5),
             "table": reshard.ShardedVariable.split(random(13, 4), 3), "swapped": random(4).astype(">f4")}  # fmt: skip
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(5, args=SliceSave(state))
    found = read_slices(locate(tmp_path / "5" / "default"))
    assert found.tensors["w"].parts == (4, 2)
    assert found.tensors["w"].layout.axes == ("data", "model")
    assert found.tensors.keys() == {"w", "b", "n", "table/0", "table/1", "table/2", "swapped"}
    assert {"_METADATA", "_sharding", "array_metadatas/process_0"} <= found.files.keys()
    assert {t.status for t in reshard.verify(tmp_path / "5").tensors} == {"recorded"}
    assert not list((tmp_path / "5" / "default").glob("slices.json.*"))
    (tmp_path / "5" / "default" / "slices.json").rename(tmp_path / "moved")
    assert not reshard.verify(tmp_path / "5").differences  # nothing recorded, nothing to differ


def test_the_state_may_be_donated_while_it_is_saved(tmp_path):
    values = random(512, 256)
    state = {"w": put(values, "data", "model"), "n": values.copy()}
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(1, args=SliceSave(state))
        change = jax.jit(lambda x: x * 0, donate_argnums=0)
        state["w"] = jax.block_until_ready(change(state["w"]))
        state["n"][:] = 0
        manager.wait_until_finished()
        target = {"w": jax.ShapeDtypeStruct((512, 256), np.float32, sharding=put(values).sharding)}
        found = manager.restore(
            1, args=SliceRestore(target | {"n": np.zeros((512, 256), np.float32)})
        )
        np.testing.assert_array_equal(np.asarray(found["w"]), values)
        np.testing.assert_array_equal(found["n"], values)
    assert {t.status for t in reshard.verify(tmp_path / "1").tensors} == {"recorded"}


def test_several_items(tmp_path):
    args = ocp.args.Composite(
        state=SliceSave({"w": put(random(8, 8), "data")}), meta=ocp.args.JsonSave({"epoch": 2})
    )
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(1, args=args)
        manager.wait_until_finished()
        assert manager.restore(1)["meta"] == {"epoch": 2}
    assert read_slices(locate(tmp_path / "1" / "state")).tensors["w"].parts == (4, 1)


def test_a_cast_while_saving_is_refused():
    tree = {"w": random(3)}
    save_args = {"w": ocp.SaveArgs(dtype=np.float16)}
    with pytest.raises(reshard.TreeError, match="save_args cast arrays while they are saved"):
        SliceSave(tree, save_args)
