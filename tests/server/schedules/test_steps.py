"""Which folders are committed steps: exactly those that stock Orbax says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import orbax.checkpoint.experimental.v1 as ocp1
import pytest
from reshard_server.schedules.watch_steps import covered_steps, step_folders
from reshard_server.schemas.schedule import NewSteps

import reshard
from reshard.storage.location import locate
from tests.dcp_files import whole, write_dcp

NAMES = [
    "0", "7", "12", "012", "0012", "00012", "12.orbax-checkpoint-tmp", "13.orbax-checkpoint-tmp-17",
    "step_3", "step_0004", "step_0", "step", "steps_5", "x_step_6", "step_7.orbax-checkpoint-tmp", "-1", "+2", "1_0",
    "14.partial_save", "1e3", "3 ", " 4", "default", ".5", "99999999999999999", "metrics", "step_12345", "12345",
]  # fmt: skip


@pytest.mark.parametrize(
    ("prefix", "digits"), [(None, None), (None, 4), ("step", None), ("step", 4), ("x_step", None)]
)
def test_as_orbax_says(tmp_path: Path, prefix: str | None, digits: int | None) -> None:
    for name in NAMES:
        (tmp_path / name).mkdir()
    for name in ("21", "0021", "step_21", "step_0021"):
        (tmp_path / name).write_text("a file")
    (tmp_path / "31").symlink_to(tmp_path / "12")
    (tmp_path / "32").symlink_to(tmp_path / "nowhere")
    names = ocp.path.step.standard_name_format(step_prefix=prefix, step_format_fixed_length=digits)
    expected = {m.step: m.path.name for m in names.find_all(tmp_path)}
    when = NewSteps(directory="data/run", step_prefix=prefix, step_digits=digits)
    assert step_folders(locate(tmp_path), when) == expected
    assert len(expected) > 1 or prefix == "x_step"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["step-7", "step-20", "20.orbax-checkpoint-tmp-1"], {7: "step-7", 20: "step-20"}),
        (["iter_0000500", "iter_0001000"], {500: "iter_0000500", 1000: "iter_0001000"}),
        (["checkpoint-7", "runs", "model_3"], {7: "checkpoint-7"}),
        (["step_3", "step_03", "step_4.orbax-checkpoint-tmp-1"], {3: "step_03"}),
        (["step-7", "checkpoint-8"], {}),
        (["step-7", "8"], {8: "8"}),
        (["0007", "0020"], {7: "0007", 20: "0020"}),
    ],
)
def test_without_a_prefix_as_steps_lists_them(
    tmp_path: Path, names: list[str], expected: dict[int, str]
) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "link_5").symlink_to(tmp_path / names[0])
    found = step_folders(locate(tmp_path), NewSteps(directory="data/run"))
    assert found == expected
    assert list(found) == sorted(found)
    for name in names:  # committed, as reshard steps asks
        write_dcp(tmp_path / name, {"w": whole(np.arange(3))})
    assert reshard.steps(tmp_path) == expected


def test_files_of_tensorflow_without_a_prefix(tmp_path: Path) -> None:
    for step in (7, 20):
        for ending in (".index", ".data-00000-of-00001"):
            (tmp_path / f"model.ckpt-{step}{ending}").write_bytes(b"")
    found = step_folders(locate(tmp_path), NewSteps(directory="data/run"))
    assert found == {7: "model.ckpt-7", 20: "model.ckpt-20"}


def test_a_directory_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert step_folders(locate(tmp_path / "later"), NewSteps(directory="data/run")) == {}


def test_of_a_manager_that_is_writing(tmp_path: Path) -> None:
    when = NewSteps(directory="data/run")
    seen = set()
    with ocp.CheckpointManager(tmp_path) as manager:
        for step in range(4):
            manager.save(step, args=ocp.args.StandardSave(_tree(step)))
            seen.add(tuple(step_folders(locate(tmp_path), when)))
            manager.wait_until_finished()
            assert list(step_folders(locate(tmp_path), when)) == sorted(
                manager.all_steps(read=True)
            )
    assert tuple(range(4)) in seen | {tuple(step_folders(locate(tmp_path), when))}


def test_of_the_v1_form(tmp_path: Path) -> None:
    when = NewSteps(directory="data/run")
    with ocp1.training.Checkpointer(tmp_path) as checkpointer:
        for step in (3, 11):
            checkpointer.save(step, _tree(step))
        assert list(step_folders(locate(tmp_path), when)) == [
            c.step for c in checkpointer.checkpoints
        ]


def test_which_are_wanted() -> None:
    steps = {step: str(step) for step in range(13)}
    when = NewSteps(directory="data/run", every=4, first_step=5)
    assert covered_steps(steps, when) == {8: "8", 12: "12"}


def _tree(step: int) -> dict[str, Any]:
    return {"w": np.full((64, 8), step, np.float32), "b": np.arange(8)}
