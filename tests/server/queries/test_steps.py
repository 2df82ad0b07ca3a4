"""A real CheckpointManager's directory, and checkpoints that stock Orbax saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

from reshard import is_checkpoint, steps
from reshard.errors import StorageError
from tests.server.served import Served


@pytest.fixture
def managed(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "managed"
    options = ocp.CheckpointManagerOptions(step_prefix="step", step_format_fixed_length=6)
    with ocp.CheckpointManager(folder, options=options) as manager:
        for step in (5, 10):
            manager.save(step, args=ocp.args.StandardSave({"w": np.arange(8.0)}))
    (folder / "step_000011").mkdir()  # begun, nothing in it yet
    (folder / "latest").symlink_to("step_000010")
    return folder


def test_steps_of_a_manager(served: Served, managed: Path) -> None:
    assert steps(managed) == {5: "step_000005", 10: "step_000010"}
    assert is_checkpoint(managed / "step_000005")
    assert not is_checkpoint(managed)
    (found,) = served.ask("GET", "/v1/checkpoints", params={"root": "data"}).json()["checkpoints"]
    assert (found["steps"], found["folders"]) == ([5, 10], ["step_000005", "step_000010"])
    body = {"checkpoint": f"{found['path']}/{found['folders'][0]}"}
    answer = served.ask("POST", "/v1/checkpoints:inspect", json=body)
    assert answer.status_code == 200, answer.text
    assert [t["shape"] for t in answer.json()["tensors"]] == [[8]]
    by_link = served.ask("POST", "/v1/checkpoints:inspect", json={"checkpoint": "data/managed/latest"})  # fmt: skip
    assert by_link.json()["uri"] == "data/managed/latest"


def test_a_folder_that_cannot_be_listed(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot list"):
        steps(tmp_path / "none")
    assert not is_checkpoint(tmp_path / "none")
