"""Folders that are no plain run: steps that were never committed, none, very many, two of one number, of several series, or elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from orbax.checkpoint import v1

import reshard
from reshard.errors import FormatError, IncompleteCheckpointError, NotACheckpointError
from tests.formats.training_runs import weights
from tests.orbax_trees import save_standard


def test_a_step_that_was_never_committed(tmp_path: Path) -> None:
    save_standard(tmp_path / "1", weights())
    (tmp_path / "2.orbax-checkpoint-tmp-77").mkdir()
    (tmp_path / "3").mkdir()
    for step, folder in ((2, "2.orbax-checkpoint-tmp-77"), (3, "3")):
        with pytest.raises(IncompleteCheckpointError) as caught:
            reshard.inspect(tmp_path, step=step)
        assert (
            f"step {step} of {tmp_path} was never committed: {folder!r} contains a save that was not "
            "finished; choose one of step 1"
        ) in str(caught.value)
    assert reshard.inspect(tmp_path, step="latest").uri == f"{tmp_path}/1"


def test_a_run_without_steps(tmp_path: Path) -> None:
    (tmp_path / "2.orbax-checkpoint-tmp-77").mkdir()
    with pytest.raises(
        NotACheckpointError, match="contains no committed step; expected the folder"
    ):
        reshard.inspect(tmp_path, step="latest")
    with pytest.raises(IncompleteCheckpointError, match="no other step is there"):
        reshard.inspect(tmp_path, step=2)


def test_many_steps_are_listed_in_short(tmp_path: Path) -> None:
    first = save_standard(tmp_path / "0", weights())
    for step in range(1, 30):
        (tmp_path / str(step)).mkdir()
        (tmp_path / str(step) / "_METADATA").write_bytes((first / "_METADATA").read_bytes())
    with pytest.raises(
        NotACheckpointError, match="30 steps: 0, 1, 2, 3, 4, …, 25, 26, 27, 28, 29; "
    ):
        reshard.inspect(tmp_path)


def test_folders_of_several_series_are_no_run(tmp_path: Path) -> None:
    for name in ("model_7", "ema_7", "ema_8"):
        save_standard(tmp_path / name, weights())
    assert reshard.steps(tmp_path) == {}
    with pytest.raises(
        NotACheckpointError, match="is not a checkpoint of a known format"
    ) as caught:
        reshard.inspect(tmp_path)
    assert "run" not in str(caught.value).replace(str(tmp_path), "")
    with pytest.raises(NotACheckpointError, match="contains no committed step"):
        reshard.inspect(tmp_path, step=7)
    save_standard(tmp_path / "7", weights())
    assert reshard.inspect(tmp_path, step=7).uri == f"{tmp_path}/7"


def test_two_folders_for_one_step(tmp_path: Path) -> None:
    for name in ("7", "007"):
        save_standard(tmp_path / name, weights())
    with pytest.raises(
        NotACheckpointError, match="has 2 folders for step 7: 007, 7; give the path"
    ):
        reshard.inspect(tmp_path, step="latest")


def test_an_item_that_leads_out_is_refused(tmp_path: Path) -> None:
    save_standard(tmp_path / "secret", weights())
    v1.save_checkpointables(tmp_path / "c", {"model": weights(1), "ema": weights(2)})
    (tmp_path / "c" / "other").symlink_to(tmp_path / "secret")
    with pytest.raises(FormatError, match="to a place outside of"):
        reshard.inspect(tmp_path / "c", item="other")
    (tmp_path / "9").symlink_to(tmp_path / "secret")
    with pytest.raises(NotACheckpointError, match="contains no committed step"):
        reshard.inspect(tmp_path, step=9)
