"""``save(run, tree, step=N)``: stock Orbax reads the steps of the run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint import v1

import reshard
from reshard.errors import PlanError, ReshardError, StorageError, TargetExistsError
from tests.orbax_trees import put, save_standard

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")


def state(scale: float = 1.0) -> dict[str, Any]:
    return {
        "params": {
            "w": put(np.arange(64, dtype=np.float32).reshape(8, 8) * scale, "data", "model")
        },
        "rng": jax.random.key(7),
        "count": 3,
    }


def check(found: Any, scale: float = 1.0) -> None:
    expected = state(scale)
    np.testing.assert_array_equal(found["params"]["w"], expected["params"]["w"])
    assert found["params"]["w"].sharding == expected["params"]["w"].sharding
    assert jax.random.key_data(found["rng"]).tolist() == [0, 7]
    assert found["count"] == 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "run"
    for step in (5, 6):
        reshard.save(folder, state(step), step=step)
    return folder


STRUCTS = jax.tree.map(ocp.utils.to_shape_dtype_struct, state())


@pytest.mark.parametrize(
    "args",
    [
        None,
        ocp.args.StandardRestore(),
        ocp.args.StandardRestore(STRUCTS),
        ocp.args.PyTreeRestore(),
    ],
    ids=["none", "standard", "standard-target", "pytree"],
)
def test_a_stock_manager_restores_it(run: Path, args: Any) -> None:
    with ocp.CheckpointManager(run) as manager:
        assert (manager.all_steps(), manager.latest_step()) == ([5, 6], 6)
        check(manager.restore(5, args=args), 5)


def test_a_stock_manager_continues_the_run(run: Path, tmp_path: Path) -> None:
    own = shutil.copytree(run, tmp_path / "run")
    with ocp.CheckpointManager(own, options=ocp.CheckpointManagerOptions(max_to_keep=2)) as manager:
        assert manager.save(7, args=ocp.args.StandardSave(state(7)))
        manager.wait_until_finished()
        assert manager.all_steps() == [6, 7]
        check(manager.restore(6, args=ocp.args.StandardRestore(STRUCTS)), 6)
    reshard.save(own, state(8), step=8)
    with ocp.CheckpointManager(own) as manager:
        assert manager.all_steps() == [6, 7, 8]
        check(manager.restore(8), 8)


def test_v1_reads_a_step_in_its_own_style(tmp_path: Path) -> None:
    reshard.save(tmp_path / "run", state(5), step=5, style="v1")
    with v1.training.Checkpointer(tmp_path / "run") as checkpointer:
        assert checkpointer.latest.step == 5
        check(checkpointer.load(5), 5)
        checkpointer.save(6, state(6))
    assert reshard.restore(tmp_path / "run", step="latest")["params"]["w"][0, 1] == 6


def test_it_is_restored_by_step(run: Path) -> None:
    assert reshard.restore(run, step="latest")["params"]["w"][0, 1] == 6
    np.testing.assert_array_equal(
        reshard.restore(run, step=5, like=state())["params"]["w"], state(5)["params"]["w"]
    )
    assert reshard.inspect(run, step=5, item="default").uri == f"{run}/5/default"
    found = reshard.verify(run, step=5)
    assert (found.differences, {t.status for t in found.tensors}) == (0, {"recorded"})
    assert sorted(p.name for p in run.iterdir()) == ["5", "6"]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "12"),
        ({"step_format_fixed_length": 6}, "000012"),
        ({"step_prefix": "ckpt"}, "ckpt_12"),
        ({"step_prefix": "my_step", "step_format_fixed_length": 4}, "my_step_0012"),
    ],
)
def test_its_folder_is_called_as_the_others(
    tmp_path: Path, options: dict[str, Any], name: str
) -> None:
    how = ocp.CheckpointManagerOptions(**options)
    with ocp.CheckpointManager(tmp_path, options=how) as manager:
        for step in (0, 9):
            manager.save(step, args=ocp.args.StandardSave(state()))
    reshard.save(tmp_path, state(2), step=np.int32(12))
    assert (tmp_path / name).is_dir()
    with ocp.CheckpointManager(tmp_path, options=how) as manager:
        assert manager.latest_step() == 12
        check(manager.restore(12), 2)


def test_in_the_background(tmp_path: Path) -> None:
    tree = state() | {"numpy": np.arange(5)}
    saving = reshard.save(tmp_path / "run", tree, step=1, wait=False)
    tree["numpy"][:] = -1
    assert saving is not None
    saving.wait()
    assert reshard.restore(tmp_path / "run", step=1)["numpy"].tolist() == [0, 1, 2, 3, 4]


def test_a_step_that_is_there_is_left_alone(run: Path, tmp_path: Path) -> None:
    own = shutil.copytree(run, tmp_path / "run")
    (own / "5").rename(own / "005")
    with pytest.raises(TargetExistsError) as caught:
        reshard.save(own, state(), step=5)
    assert str(caught.value) == (
        f"step 5 of {str(own)!r} exists already ('005') and was left untouched; save another step, or ask to "
        "overwrite it (overwrite)"
    )
    assert reshard.restore(own, step=5)["params"]["w"][0, 1] == 5
    reshard.save(own, state(9), step=5, overwrite=True)
    assert reshard.restore(own, step=5)["params"]["w"][0, 1] == 9
    assert sorted(p.name for p in own.iterdir()) == ["005", "6"]


def in_a_checkpoint(path: Path) -> Path:
    return save_standard(path / "c", state())


def among_others(path: Path) -> Path:
    save_standard(path / "small_1", state())
    return path


def in_a_file(path: Path) -> Path:
    (path / "file").write_text("x")
    return path / "file"


def nowhere(path: Path) -> Path:
    return path / "run"


@pytest.mark.parametrize(
    ("place", "step", "error", "text"),
    [
        (in_a_checkpoint, 5, StorageError, "is a checkpoint itself, so step 5 cannot be saved in it"),
        (among_others, 5, StorageError, "contains 'small_1', which may or may not be a step, so it is not clear how step 5"),
        (in_a_file, 5, StorageError, "which should be a folder but is none"),
        (nowhere, -1, PlanError, "step is -1; expected the number of a step, 0 or more"),
        (nowhere, "latest", PlanError, "step is 'latest'; expected the number of a step, 0 or more"),
        (nowhere, True, PlanError, "step is True; expected the number of a step"),
        (nowhere, 1.0, PlanError, "step is 1.0; expected the number of a step"),
    ],
)  # fmt: skip
def test_refusals(
    tmp_path: Path, place: Any, step: Any, error: type[ReshardError], text: str
) -> None:
    path = place(tmp_path)
    before = sorted(p.name for p in tmp_path.rglob("*"))
    with pytest.raises(error) as caught:
        reshard.save(path, state(), step=step)
    assert text in str(caught.value)
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


KILLED = """
import os, sys
import numpy as np
import reshard
from reshard.storage.local import transaction as local_transaction

local_transaction.publish = lambda *_, **__: os._exit(9)
reshard.save(sys.argv[1], {"w": np.arange(8.0)}, step=2)
"""


def test_a_save_that_is_killed_leaves_no_step(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    reshard.save(folder, {"w": np.zeros(8)}, step=1)
    died = subprocess.run([sys.executable, "-c", KILLED, folder], cwd=ROOT, check=False)
    assert died.returncode == 9
    with ocp.CheckpointManager(folder) as manager:
        assert manager.all_steps() == [1]
    assert reshard.inspect(folder, step="latest").uri == f"{folder}/1"
    reshard.save(folder, {"w": np.ones(8)}, step=2)
    assert sorted(p.name for p in folder.iterdir()) == ["1", "2"]
