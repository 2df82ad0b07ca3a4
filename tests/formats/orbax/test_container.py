"""Items that are one array (``ArraySave``), as Orbax writes them today, and as it did before they had ``_METADATA``."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from safetensors.numpy import load_file

import reshard
from reshard.errors import IncompleteCheckpointError

ARRAYS: dict[str, Any] = {
    "ema": jnp.arange(12, dtype=jnp.float32).reshape(3, 4),
    "counts": np.arange(5),
    "rate": 3.5,
}
OF_NEW_VERSIONS = ("_METADATA", "_sharding", "array_metadatas")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with one step: as saved today, and without what the items of arrays lacked in old versions."""
    root = tmp_path_factory.mktemp("arrays")
    args = {name: ocp.args.ArraySave(array) for name, array in ARRAYS.items()}
    with ocp.CheckpointManager(root / "new") as manager:
        state = ocp.args.StandardSave({"w": np.ones((4, 4), np.float32)})
        manager.save(0, args=ocp.args.Composite(state=state, note=ocp.args.JsonSave({}), **args))
    shutil.copytree(root / "new", root / "old")
    for name in ARRAYS:
        for file in OF_NEW_VERSIONS:
            path = root / "old" / "0" / name / file
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return root


def restored(run: Path) -> dict[str, Any]:
    """What stock Orbax restores of the items."""
    with ocp.CheckpointManager(run) as manager:
        found = manager.restore(
            0, args=ocp.args.Composite(**{name: ocp.args.ArrayRestore() for name in ARRAYS})
        )
    return dict(found.items())


@pytest.mark.parametrize("age", ["new", "old"])
def test_arrays_become_tensors_of_safetensors(runs: Path, tmp_path: Path, age: str) -> None:
    report = reshard.convert(runs / age / "0", tmp_path / "hf", to="safetensors")
    found = load_file(tmp_path / "hf" / "model.safetensors")
    for name, array in ARRAYS.items():
        assert found[f"{name}/checkpoint"].tobytes() == np.asarray(array).tobytes()
    assert [text for text in report.warnings if "no trees" in text] == [
        "the items note are no trees of tensors, so a safetensors target leaves them out"
    ]


@pytest.mark.parametrize("age", ["new", "old"])
def test_stock_orbax_restores_arrays_that_were_converted(
    runs: Path, tmp_path: Path, age: str
) -> None:
    reshard.convert(runs / age / "0", tmp_path / "run" / "0", mesh="x=8")
    wanted, found = restored(runs / age), restored(tmp_path / "run")
    for name, array in ARRAYS.items():
        for one in (wanted[name], found[name]):
            assert np.asarray(one).tobytes() == np.asarray(array).tobytes()


def test_an_old_array_is_restored_by_itself(runs: Path) -> None:
    assert (reshard.restore(runs / "old", step=0, item="ema")["checkpoint"] == ARRAYS["ema"]).all()


def test_another_name_of_the_folder_is_found(runs: Path, tmp_path: Path) -> None:
    step = shutil.copytree(runs / "old" / "0", tmp_path / "0")
    (step / "ema" / "checkpoint").rename(step / "ema" / "average")
    assert "ema/average" in reshard.inspect(step).tensors


def test_an_array_that_is_lost_is_not_left_out(runs: Path, tmp_path: Path) -> None:
    step = shutil.copytree(runs / "old" / "0", tmp_path / "0")
    shutil.rmtree(step / "ema" / "checkpoint")
    with pytest.raises(IncompleteCheckpointError, match="ArrayCheckpointHandler, but has none"):
        reshard.inspect(step)
    shutil.rmtree(step / "ema")
    with pytest.raises(IncompleteCheckpointError, match="should have the item 'ema'"):
        reshard.inspect(step)
