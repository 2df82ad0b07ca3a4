"""The committed steps of a CheckpointManager's directory, as Orbax counts them.

On a file system that renames, Orbax commits by a rename: a folder is a committed step if its name is a
step's and does not contain ``.orbax-checkpoint-tmp`` (``_src/path/step.py``, ``_StandardNameFormat``, which
the v1 API uses as well). Names depend on two options of the manager::

    step_prefix, step_format_fixed_length    name of step 23
    None, None                               23
    None, 4                                  0023
    "step", 4                                step_0023
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from reshard_server.schemas.base import LARGEST_STEP
from reshard_server.schemas.schedule import NewSteps

TEMPORARY = ".orbax-checkpoint-tmp"


def committed_steps(directory: Path, when: NewSteps) -> dict[int, str]:
    """The name of the folder of each committed step, in the order of the steps.

    A directory that does not exist has none yet. Raises OSError if it cannot be read.
    """
    pattern, found = _pattern(when), {}
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                match = pattern.fullmatch(entry.name)
                if match and TEMPORARY not in entry.name and entry.is_dir():
                    found[int(match[1])] = entry.name
    except FileNotFoundError:
        return {}
    return {step: found[step] for step in sorted(found) if step <= LARGEST_STEP}


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
    prefix = "" if when.step_prefix is None else re.escape(f"{when.step_prefix}_")
    return re.compile(f"{prefix}({number})", re.DOTALL)
