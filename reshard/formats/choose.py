"""Chooses a checkpoint: a path, a step of a training run, one item.

All three become one plain path before anything is read: ``run``, step 5 and item ``model`` are
``run/5/model``. The folder of an item is a checkpoint of its own, whose names omit the item.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

from reshard.arguments import Unlisted, path_of
from reshard.errors import IncompleteCheckpointError, NotACheckpointError, PlanError, StorageError
from reshard.formats.contents import Item
from reshard.formats.names import StepName
from reshard.formats.registry import CheckpointPath, is_no_run, refuse_missing
from reshard.formats.steps import (
    LARGEST_STEP,
    refuse_several_words,
    run_steps,
    steps_text,
    uncommitted,
)
from reshard.storage.location import Location

Step = int | Literal["latest"]

_HOW = "choose one with step=N or step='latest'"


def choose_checkpoint(
    path: str | os.PathLike[str],
    step: Step | None = None,
    item: str | None = None,
    what: str = "checkpoint",
    unlisted: Unlisted = "leave",
) -> CheckpointPath:
    """The checkpoint that path, step and item name together; ``what`` names it in errors.

    Raises PlanError if step or item make no sense for this path, NotACheckpointError if there is no such step or item,
    IncompleteCheckpointError for a step that was never committed, StorageError if the path does not exist.
    """
    path, step = path_of(what, path), checked_step(step)
    if not (item is None or isinstance(item, str)):
        raise PlanError(f"item is {item!r}; expected the name of an item, such as 'model'")
    found = CheckpointPath.at(path, unlisted)
    if step is None and item is None:
        # Opening it reports anything else that is wrong, and verify counts that as damage.
        with suppress(StorageError):
            _refuse_run(found)
        return found
    if step is None:
        _refuse_run(found)
    else:
        refuse_missing(path, found.root, "a training run's folder")
        found = found.below(_step_folder(path, found.root, step))
    if item is None:
        return found
    refuse_missing(found.path, found.root)
    return found.below(_item_folder(found, item))


def checked_step(step: Any) -> Step | None:
    """The step as a plain number, ``"latest"`` or None; PlanError for anything else."""
    if step is None:
        return None
    if isinstance(step, str) and step == "latest":
        return "latest"
    return step_number(step, "the number of a step, or 'latest'")


def step_number(step: Any, expected: str = "the number of a step, 0 or more") -> int:
    """The number of a step, which may be an integer of numpy or jax; PlanError for anything else."""
    try:
        number = None if isinstance(step, bool) else operator.index(step)
    except TypeError:
        number = None
    if number is None or not 0 <= number <= LARGEST_STEP:
        raise PlanError(f"step is {step!r}; expected {expected}")
    return number


def _refuse_run(found: CheckpointPath) -> None:
    is_folder = found.recognised is None and found.names.kind == "folder"
    steps = _by_step(run_steps(found.root)) if is_folder else {}
    if steps:
        path = found.path
        last = f"{path.rstrip('/')}/{steps[max(steps)][0]}"
        raise NotACheckpointError(
            f"{path} is {_run_text(steps)}; {_HOW}, or name one of them: {last}"
        )


def _run_text(steps: dict[int, list[str]]) -> str:
    return f"a training run's folder with {steps_text(steps)}"


def _by_step(found: Sequence[StepName]) -> dict[int, list[str]]:
    steps: dict[int, list[str]] = {}
    for one in found:
        steps.setdefault(one.step, []).append(one.name)
    return steps


def _step_folder(path: str, root: Location, step: Step) -> str:
    """The name of the step's folder."""
    if is_no_run(root):
        raise PlanError(
            f"{path} is a checkpoint, not the folder of a training run, but a step is given; leave step {step} out (step), or give "
            "the folder that contains the steps"
        )
    steps = _by_step(run_steps(root, any_prefix=True))
    if step == "latest" and steps:
        step = max(steps)
    if step not in steps:
        raise _no_step(path, root, step, steps)
    if len(steps[step]) > 1:
        raise NotACheckpointError(
            f"{path} has {len(steps[step])} folders for step {step}: {', '.join(steps[step])}; give the path of one"
        )
    return steps[step][0]


def _no_step(path: str, root: Location, step: Step, steps: dict[int, list[str]]) -> Exception:
    begun = None if step == "latest" else uncommitted(root, step)
    if begun is not None:
        return IncompleteCheckpointError(
            f"step {step} of {path} was never committed: {begun!r} contains a save that was not finished; "
            + (f"choose one of {steps_text(steps)}" if steps else "no other step is there")
        )
    if steps:
        return NotACheckpointError(f"{path} has no step {step}; it is {_run_text(steps)}; {_HOW}")
    refuse_several_words(path, root)
    return NotACheckpointError(
        f"{path} contains no committed step; expected the folder of a training run, in which each step is a "
        "checkpoint with a name such as 1000 or step_1000"
    )


def _item_folder(chosen: CheckpointPath, item: str) -> str:
    """The name of the item's folder."""
    path, root = chosen.path, chosen.root
    if chosen.recognised is None:
        raise NotACheckpointError(
            f"{path} is not a checkpoint, so it has no item {item!r}; expected the folder of a checkpoint, or "
            "the folder of a training run and its step (step)"
        )
    items = chosen.recognised[1].items(root)
    if all(one.directory == "" for one in items):
        raise PlanError(
            f"{path} is a single tree without items, so it has no item {item!r}; leave the item out (item)"
        )
    found = next((one for one in items if one.name == item), None)
    if found is None:
        raise NotACheckpointError(f"{path} has no item {item!r}; {_trees(items)}")
    (root.view() / found.directory).status(f"the item {item!r}")
    if not found.is_tree:
        by = f" (saved by {found.handler.rpartition('.')[2]})" if found.handler else ""
        raise NotACheckpointError(
            f"the item {item!r} of {path} is not a tree of tensors{by}; {_trees(items)}"
        )
    return found.directory


def _trees(items: Sequence[Item]) -> str:
    names = [repr(one.name) for one in items if one.is_tree]
    return f"it has the item{'s' if len(names) > 1 else ''} {', '.join(names)}"
