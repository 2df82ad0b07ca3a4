"""Steps: the folders of a training run; each is a checkpoint, named by its number.

Orbax's CheckpointManager names them ``1000``, ``00001000`` or ``step_1000``, depending on its options. A folder may
also contain unrelated checkpoints, such as ``small_1`` and ``large_2``: a number after any other word is a step
only if the caller asks for a step.

Training runs save Orbax checkpoints, so that steps are looked for in that format only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

from reshard.formats.orbax.container import TEMPORARY, is_finished, is_orbax
from reshard.storage.commit_markers import COMMIT_MARKER, is_left_unfinished
from reshard.storage.location import Location
from reshard.storage.parallel_calls import each_at_once

_STEP = re.compile(r"(?:(.+)_)?([0-9]{1,18})", re.DOTALL | re.ASCII)
_USUAL_PREFIX = re.compile(r"(?:.*_)?(?:step|checkpoint|ckpt)", re.DOTALL)

LARGEST_STEP = 10**18 - 1

_SHOWN = 10


class StepName(Struct, frozen=True, order=True):
    """The name of a folder that may be a step; ``prefix`` is "" for a number alone."""

    prefix: str
    step: int
    name: str

    @property
    def number(self) -> str:
        """The number as it is written."""
        return self.name[len(self.prefix) + 1 :] if self.prefix else self.name

    @property
    def is_usual(self) -> bool:
        """Whether it can only be a step."""
        return not self.prefix or _USUAL_PREFIX.fullmatch(self.prefix) is not None


def step_name(name: str) -> StepName | None:
    """The parsed name of a folder; None if it does not end with a number."""
    match = _STEP.fullmatch(name)
    return StepName(match[1] or "", int(match[2]), name) if match else None


def committed_steps(folder: Location) -> dict[int, str]:
    """The finished checkpoints of steps below a folder: step numbers, ascending, and folder names.

    If two folders are for the same step, the first by name counts. Raises StorageError if the folder cannot be listed.
    """
    found: dict[int, str] = {}
    for one in run_steps(folder):
        found.setdefault(one.step, one.name)
    return found


def run_steps(folder: Location, *, any_prefix: bool = False) -> list[StepName]:
    """Every committed step of a run's folder, ascending; none for any other folder.

    All steps of a run have the same prefix, or none. If prefixes differ, only plain numbers count.
    ``any_prefix``: whether any word may be the prefix.
    """
    folder = folder.remembered()
    named = [
        one
        for name in folder.folders()
        if (one := step_name(name)) is not None and (any_prefix or one.is_usual)
    ]
    whole = each_at_once(folder.store, lambda one: _is_committed(folder / one.name), named)
    found = sorted(one for one, is_whole in zip(named, whole, strict=True) if is_whole)
    if len({one.prefix for one in found}) > 1:
        return [one for one in found if not one.prefix]
    return found


def begun_steps(folder: Location) -> list[StepName]:
    """Saves of steps in a run's folder that did not finish, or have not yet, ascending; ``name`` is the folder's."""
    folder = folder.remembered()
    named = [
        StepName(one.prefix, one.step, name)
        for name in folder.folders()
        if (one := step_name(name.partition(TEMPORARY)[0])) is not None and one.is_usual
    ]
    whole = each_at_once(folder.store, lambda one: _is_committed(folder / one.name), named)
    return sorted(one for one, is_whole in zip(named, whole, strict=True) if not is_whole)


def committed_among(folder: Location, names: Iterable[str]) -> list[str]:
    """Which of these folders of a run are committed, as Orbax counts: on a local disk all that have their final name, in a
    bucket those with the marker, in one request for each."""
    names = [name for name in names if TEMPORARY not in name]
    if folder.store.renames:
        return names
    seen = folder.remembered()
    marked = each_at_once(seen.store, lambda name: (seen / name / COMMIT_MARKER).is_file(), names)
    return [name for name, is_whole in zip(names, marked, strict=True) if is_whole]


def uncommitted(folder: Location, step: int) -> str | None:
    """The name of a folder of a save of ``step`` that did not finish; None if there is none."""
    folder = folder.remembered()
    for name in folder.folders():
        one = step_name(name.partition(TEMPORARY)[0])
        if one is not None and one.step == step and not _is_committed(folder / name):
            return name
    return None


def committed(folder: Location) -> Iterator[str]:
    """Names of the finished checkpoints right below a folder, in order."""
    folder = folder.remembered()
    return (name for name in folder.folders() if _is_committed(folder / name))


def steps_text(steps: Iterable[int]) -> str:
    """``"steps 1, 2, 3"``; of many steps only the first and the last."""
    numbers = list(map(str, steps))
    if len(numbers) > _SHOWN:
        half = _SHOWN // 2
        text = ", ".join([*numbers[:half], "…", *numbers[-half:]])
        return f"{len(numbers)} steps: {text}"
    return f"step{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"


def _is_committed(folder: Location) -> bool:
    """Whether a folder has the marks of an Orbax checkpoint, and none of an unfinished one."""
    return is_orbax(folder) and is_finished(folder) and not is_left_unfinished(folder)
