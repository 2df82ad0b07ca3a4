"""Names around a checkpoint: of step folders of a training run, of versions of weights, and of files that record something about it."""

from __future__ import annotations

import re

from msgspec import Struct

from reshard.formats.slices.slice_file import FILE_NAME, PARTIAL_NAME

_USUAL = r"(?:.*_)?(?:step|checkpoint|ckpt|iter)"
_USUAL_PREFIX = re.compile(_USUAL, re.DOTALL)
_OF_PREFIX = re.compile(r"(.+)-([0-9]{1,18})", re.DOTALL | re.ASCII)
_STEP = re.compile(rf"(?:(.+)_|({_USUAL})-)?([0-9]{{1,18}})", re.DOTALL | re.ASCII)

# A number that has the digits does not begin with zeros: receivers look for one name.
_VERSION = re.compile(r"weight_v([0-9]{6}|[1-9][0-9]{6,14})")


class StepName(Struct, frozen=True, order=True):
    """The name of a folder that may be a step, or of files as TensorFlow names them.

    Attributes:
        prefix: the text before the number; "" for a number alone.
        is_folder: False for the prefix of files' names.
    """

    prefix: str
    step: int
    name: str
    is_folder: bool = True

    @property
    def number(self) -> str:
        """The number as it is written."""
        return self.name[len(self.prefix) + 1 :] if self.prefix else self.name

    @property
    def is_usual(self) -> bool:
        """True if it can only be a step."""
        return not self.prefix or _USUAL_PREFIX.fullmatch(self.prefix) is not None


def step_of_prefix(name: str) -> StepName | None:
    """The parsed prefix of a checkpoint of TensorFlow, which puts a number behind any word; None if it does not end with one.

    >>> step_of_prefix("model.ckpt-7")
    StepName(prefix='model.ckpt', step=7, name='model.ckpt-7', is_folder=False)
    """
    found = _OF_PREFIX.fullmatch(name)
    return None if found is None else StepName(found[1], int(found[2]), name, is_folder=False)


def step_name(name: str) -> StepName | None:
    """The parsed name of a folder; None if it does not end with a number."""
    match = _STEP.fullmatch(name)
    return StepName(match[1] or match[2] or "", int(match[3]), name) if match else None


def is_step_name(name: str) -> bool:
    """True if a folder of that name can only be a step."""
    found = step_name(name)
    return found is not None and found.is_usual


def version_of_name(name: str) -> str | None:
    """The numbered version that the name of a folder gives; None for another name.

    >>> version_of_name("weight_v000007")
    '000007'
    """
    found = _VERSION.fullmatch(name)
    return None if found is None else found[1]


IDENTITY_NAME = "identity.json"
TREE_NAME = "identity.tree"
SIGNATURE_NAME = "identity.dsse.json"
RECEIPT_NAME = "identity.receipt.json"
SHA256_NAME = "sha256.json"
PROBE_NAME = ".identity.probe"
"""Written and removed at once, as a test that files can be written."""

OF_IDENTITY = (IDENTITY_NAME, TREE_NAME, SIGNATURE_NAME, RECEIPT_NAME, SHA256_NAME)
"""The files of an identity, at the top of a checkpoint."""

OF_RECORDS = frozenset({FILE_NAME, PARTIAL_NAME, PROBE_NAME, *OF_IDENTITY})
"""Names that do not count for the state of a checkpoint, and are not carried into another."""
