"""The folder of a step to save: named like the run's other steps, and refused if the step exists."""

from __future__ import annotations

from collections.abc import Sequence

from reshard.errors import StorageError, TargetExistsError
from reshard.formats.registry import is_checkpoint
from reshard.formats.step_names import StepName
from reshard.formats.steps import run_steps
from reshard.storage.location import Location


def step_folder(run: Location, step: int, *, overwrite: bool) -> Location:
    """The folder of a step of the run in the folder ``run``.

    Raises StorageError if ``run`` is a checkpoint, or its names do not tell how steps are named;
    TargetExistsError if the step exists and may not be replaced.
    """
    if is_checkpoint(run):
        raise StorageError(
            f"{str(run)!r} is a checkpoint itself, so step {step} cannot be saved in it; give the folder of the "
            "training run, or leave the step out (step)"
        )
    if not run.is_folder():
        return run / str(step)
    steps = run_steps(run, any_prefix=True)
    if steps and not steps[0].is_usual:
        raise StorageError(
            f"{str(run)!r} contains {steps[0].name!r}, which may or may not be a step, so it is not clear how step {step} "
            "should be called; give the whole path without a step (step), or another folder"
        )
    there = [one for one in steps if one.step == step]
    if there and not overwrite:
        raise TargetExistsError(
            f"step {step} of {str(run)!r} exists already ({there[0].name!r}) and was left untouched; save another "
            "step, or ask to overwrite it (overwrite)"
        )
    return run / (there[0].name if there else _name(step, steps))


def _name(step: int, there: Sequence[StepName]) -> str:
    """The name that CheckpointManager would give the step, with its options guessed from the other names."""
    if not there:
        return str(step)
    padded = {
        len(number) for one in there if (number := one.number).startswith("0") and number != "0"
    }
    number = f"{step:0{max(padded)}d}" if padded else str(step)
    return there[0].name.removesuffix(there[0].number) + number
