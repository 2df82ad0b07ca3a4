"""The committed steps of a training run's directory, as Orbax counts them; and steps of other formats, once all files are there.

On a file system that renames, Orbax commits by a rename: a folder is a committed step if its name is a
step's, to which Orbax adds ``.orbax-checkpoint-tmp`` or ``.partial_save`` until then (``_src/path/step.py``,
``_StandardNameFormat``, which the v1 API uses as well). In a bucket it writes ``commit_success.txt`` last, so each new name is looked up
once more. Names depend on two options of the manager::

    step_prefix, step_format_fixed_length    name of step 23
    None, None                               23
    None, 4                                  0023
    "step", 4                                step_0023

transformers' Trainer names them ``checkpoint-23``; there the prefix is ``checkpoint``, which may be left out if no step is a plain number.
TensorFlow's ``ckpt-23`` is the prefix of its files: a step has an index, which is written last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from reshard.errors import MissingError, StorageError
from reshard.formats.steps import committed_among, named_steps
from reshard.formats.tensorflow.files import prefixes_in
from reshard.storage.location import Location
from reshard_server.schemas.base import LARGEST_STEP
from reshard_server.schemas.schedule import NewSteps

ASKED_AT_ONCE = 16
"""Markers that are looked for before the first of these steps is handled."""


def step_folders(directory: Location, when: NewSteps) -> dict[int, str]:
    """The name of the folder or the prefix of each step, in the order of the steps; in a bucket some may not be committed yet.

    Without a prefix or digits in the schedule, names are plain numbers; if there are none, any names of ``reshard steps``.
    A directory that does not exist has none yet. Raises StorageError if it cannot be listed.
    """
    pattern = _pattern(when)
    try:
        names = [entry.name for entry in directory.entries() if entry.is_folder]
        names += prefixes_in(directory)
        found = {int(m[1]): name for name in names if (m := pattern.fullmatch(name))}
        if not found and when.step_prefix is None and when.step_digits is None:
            # Of one step with several names the first counts, as for ``reshard steps``.
            found = {one.step: one.name for one in reversed(named_steps(directory))}
    except StorageError as error:
        if _is_missing(error):
            return {}
        raise
    return {step: found[step] for step in sorted(found) if step <= LARGEST_STEP}


def committed(directory: Location, folders: dict[int, str]) -> Iterator[int]:
    """Those of these steps that are committed, in their order.

    They are looked for a few at a time, so steps that are not taken from the iterator cost no request. Raises StorageError.
    """
    steps = iter(folders)
    while batch := list(islice(steps, ASKED_AT_ONCE)):
        names = set(committed_among(directory, [folders[step] for step in batch]))
        yield from (step for step in batch if folders[step] in names)


def _is_missing(error: StorageError) -> bool:
    if isinstance(error.__cause__, FileNotFoundError):
        return True
    return isinstance(error, MissingError) and not error.fault


def covered_steps(steps: dict[int, str], when: NewSteps) -> dict[int, str]:
    """The steps that the schedule covers."""
    return {
        step: name
        for step, name in steps.items()
        if step % when.every == 0 and step >= when.first_step
    }


def _pattern(when: NewSteps) -> re.Pattern[str]:
    digits = when.step_digits
    number = "0|[1-9][0-9]*"
    if digits is not None:
        number = f"0[0-9]{{{digits - 1}}}|[1-9][0-9]{{{digits - 1}}}[0-9]*"
    prefix = "" if when.step_prefix is None else f"{re.escape(when.step_prefix)}[_-]"
    return re.compile(f"{prefix}({number})", re.DOTALL)
