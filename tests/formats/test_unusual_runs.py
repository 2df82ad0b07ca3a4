"""Folders that are no plain run: steps that were never committed, none, very many, two of one number, of several series, or elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint import v1

import reshard
from reshard.errors import FormatError, IncompleteCheckpointError, NotACheckpointError
from reshard.inspection.run_steps import steps_of
from tests.formats.training_runs import weights
from tests.orbax_trees import save_standard

SEVERAL = (
    " contains checkpoints with several words before their numbers: {}; it is not clear which are the steps of a run; give the path of one without "
    "a step (step), or move the others away"
)


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


def test_a_partial_save_that_was_never_finalized(tmp_path: Path) -> None:
    """Of Orbax: a call makes a part with every mark of a checkpoint, and ``finalize`` renames the folder last."""
    for step, names in ((1, "a"), (2, "ab"), (3, "a")):
        for name in names:
            v1.partial.save(tmp_path / str(step), {name: np.arange(4)})
    for step in (1, 3):
        v1.partial.finalize(tmp_path / str(step))
    killed = (tmp_path / "3").rename(tmp_path / "3.partial_save")  # before the last rename
    begun = tmp_path / "2.partial_save"
    parts = list(begun.iterdir())
    assert len(parts) == 2
    for place in (begun, *parts, parts[0] / "state", killed, killed / "state"):
        with pytest.raises(IncompleteCheckpointError) as caught:
            reshard.convert(place, tmp_path / "out")
        named = place.parent if place.name == "state" else place
        assert (
            f"{place} is a temporary folder of a save that was never committed, or in one, by the name {named.name!r}; "
            "use a checkpoint that was saved completely, or let Orbax finish this one (partial.finalize)"
        ) in str(caught.value)
    with pytest.raises(NotACheckpointError, match="a training run's folder with step 1; choose"):
        reshard.convert(tmp_path, tmp_path / "out")
    with pytest.raises(IncompleteCheckpointError, match=r"'2\.partial_save' contains"):
        reshard.convert(tmp_path, tmp_path / "out", step=2)
    assert len(reshard.convert(tmp_path, tmp_path / "out", step="latest").tensors) == 1
    assert reshard.steps(tmp_path) == {1: "1"}
    found = {one.name: one.is_finished for one in steps_of(tmp_path)}
    assert found == {"1": True, "2.partial_save": False, "3.partial_save": False}


def test_a_step_of_an_old_version_that_was_never_committed(tmp_path: Path) -> None:
    """Orbax 0.5.9 and older wrote no _CHECKPOINT_METADATA, so that such a step looks like an item of its run."""
    save_standard(tmp_path / "1", weights())
    begun = save_standard(tmp_path / "2", weights()).rename(tmp_path / "2.orbax-checkpoint-tmp-7")
    (begun / "_CHECKPOINT_METADATA").unlink()
    with pytest.raises(NotACheckpointError, match="a training run's folder with step 1; choose"):
        reshard.inspect(tmp_path)


def test_a_step_of_which_only_items_are_begun(tmp_path: Path) -> None:
    begun = tmp_path / "2.orbax-checkpoint-tmp-7"
    (begun / "default.orbax-checkpoint-tmp-8").mkdir(parents=True)
    with pytest.raises(IncompleteCheckpointError, match="temporary folder of a save that was"):
        reshard.inspect(begun)


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
    with pytest.raises(NotACheckpointError) as caught:
        reshard.inspect(tmp_path, step=7)
    assert str(caught.value) == f"{tmp_path}{SEVERAL.format('ema (ema_7), model (model_7)')}"
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


def manager_of(folder: Path, prefix: str, steps: tuple[int, ...], digits: int | None = None) -> ocp.CheckpointManagerOptions:  # fmt: skip
    """A run that stock Orbax saves with any word before its numbers; its options."""
    how = ocp.CheckpointManagerOptions(step_prefix=prefix, step_format_fixed_length=digits)
    with ocp.CheckpointManager(folder, options=how) as manager:
        for step in steps:
            manager.save(step, args=ocp.args.StandardSave(weights(step)))
    return how


@pytest.mark.parametrize(("digits", "name"), [(None, "ppo_networks_3000"), (7, "ppo_networks_0003000")])  # fmt: skip
@pytest.mark.parametrize("steps", [(1000,), (1000, 2000)])
def test_a_run_may_have_any_prefix(
    steps: tuple[int, ...], digits: int | None, name: str, tmp_path: Path
) -> None:
    how = manager_of(tmp_path, "ppo_networks", steps, digits)
    assert list(reshard.steps(tmp_path)) == list(steps)
    last = f"ppo_networks_{steps[-1]:0{digits or 0}d}"
    assert reshard.locate(tmp_path, step="latest") == f"{tmp_path}/{last}"
    (tmp_path / f"{name}.orbax-checkpoint-tmp-7").mkdir()
    found = reshard.inspect_run(tmp_path)
    assert [(one.step, one.is_finished) for one in found] == [*((n, True) for n in steps), (3000, False)]  # fmt: skip
    reshard.save(tmp_path, weights(3000), step=3000)
    assert (tmp_path / name).is_dir()
    assert reshard.restore(tmp_path, step=3000)["w"][0, 1] == 3000
    with ocp.CheckpointManager(tmp_path, options=how) as manager:
        assert manager.latest_step() == 3000
        assert manager.restore(3000)["w"][0, 1] == 3000


def test_an_odd_copy_beside_a_run_is_no_step(tmp_path: Path) -> None:
    manager_of(tmp_path, "ppo_networks", (1, 2, 3))
    manager_of(tmp_path, "best", (3,))
    save_standard(tmp_path / "fold_0", weights())
    assert reshard.steps(tmp_path) == {n: f"ppo_networks_{n}" for n in (1, 2, 3)}


def test_several_prefixes_are_named(tmp_path: Path) -> None:
    for prefix in ("actor", "critic"):
        manager_of(tmp_path, prefix, (1, 2))
    assert reshard.steps(tmp_path) == {}
    with pytest.raises(NotACheckpointError) as error:
        reshard.inspect_run(tmp_path)
    assert str(error.value) == f"{tmp_path}{SEVERAL.format('actor (actor_1), critic (critic_1)')}"
    with pytest.raises(NotACheckpointError, match="contains checkpoints with several words"):
        reshard.save(tmp_path, weights(), step=3)
