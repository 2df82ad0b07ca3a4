"""The steps of a training run: their states, sizes, and times of writing."""

from __future__ import annotations

import os
from datetime import datetime

from reshard.answers.record import Record
from reshard.arguments import path_of
from reshard.errors import NotACheckpointError, PlanError
from reshard.formats.known_formats import files_of
from reshard.formats.registry import is_no_run, refuse_missing
from reshard.formats.steps import begun_steps, refuse_several_words, run_steps
from reshard.storage.calls import each_at_once
from reshard.storage.leftovers import FolderSize, files_size, folder_size
from reshard.storage.location import Location, locate


class StepInfo(Record, frozen=True):
    """One step of a training run.

    Attributes:
        name: of its folder, or the prefix of its files.
        path: the same, as other calls take it.
        is_finished: True if it was committed; no other step is read.
        nbytes: of all its files together, as they are stored.
        written_at: time of the last write to one of its files, in UTC; None without files.
    """

    step: int
    name: str
    path: str
    is_finished: bool
    files: int
    nbytes: int
    written_at: datetime | None


def steps_of(run: str | os.PathLike[str]) -> tuple[StepInfo, ...]:
    """Every step of a run's folder, ascending, including unfinished ones.

    Raises MissingError if there is no such folder, PlanError if it is a checkpoint itself, NotACheckpointError if it has no
    steps.
    """
    path = path_of("run", run)
    root = locate(path)
    refuse_missing(path, root, "a training run's folder")
    if is_no_run(root):
        raise PlanError(
            f"{path} is a checkpoint, not the folder of a training run; give the folder that contains the steps, or look into "
            "this one with inspect"
        )
    found = run_steps(root)
    begun = begun_steps(root, found[0].prefix if found else "")
    named = [(one, True) for one in found] + [(one, False) for one in begun]
    if not named:
        refuse_several_words(path, root)
        raise NotACheckpointError(
            f"{path} contains no step; expected the folder of a training run, in which each step is a checkpoint with a name such "
            "as 1000 or step_1000"
        )
    sizes = each_at_once(root.store, lambda one: _size(root / one[0].name), named)
    infos = [
        StepInfo(
            step=one.step,
            name=one.name,
            path=f"{path.rstrip('/')}/{one.name}",
            is_finished=is_finished,
            files=size.files,
            nbytes=size.nbytes,
            written_at=size.written_at,
        )
        for (one, is_finished), size in zip(named, sizes, strict=True)
    ]
    return tuple(sorted(infos, key=lambda step: (step.step, not step.is_finished, step.name)))


def _size(step: Location) -> FolderSize:
    files = files_of(step)
    return folder_size(step) if files is None else files_size(files)
