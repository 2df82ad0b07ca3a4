"""The names of the folders of a training run, each of which is a step."""

from __future__ import annotations

import re

from msgspec import Struct

_USUAL = r"(?:.*_)?(?:step|checkpoint|ckpt)"
_USUAL_PREFIX = re.compile(_USUAL, re.DOTALL)
_STEP = re.compile(rf"(?:(.+)_|({_USUAL})-)?([0-9]{{1,18}})", re.DOTALL | re.ASCII)


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
    return StepName(match[1] or match[2] or "", int(match[3]), name) if match else None


def is_step_name(name: str) -> bool:
    """Whether a folder of that name can only be a step."""
    found = step_name(name)
    return found is not None and found.is_usual
