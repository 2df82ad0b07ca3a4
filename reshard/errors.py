"""Every error this project raises on purpose.

::

    ReshardError
    ├── LayoutError        a mesh, layout, layout map or layout file that makes no sense
    ├── FormatError        a checkpoint that cannot be understood
    │   ├── NotACheckpointError      nothing here that any reader knows
    │   ├── IncompleteCheckpointError  the writer never committed it
    │   └── CorruptError             bytes that contradict their own metadata
    ├── PlanError          a conversion that makes no sense, found before a byte moves
    │   └── MemoryBudgetError        nothing fits ``max_memory``
    ├── StorageError       the file system said no: missing, full, forbidden, busy
    │   ├── MissingError             nothing is there to be read (a FileNotFoundError)
    │   ├── ForbiddenError           no permission (a PermissionError)
    │   ├── TargetExistsError        something is already there (a FileExistsError)
    │   ├── TargetBusyError          another live process is writing there
    │   ├── ResumeError              an unfinished run was another conversion, or of another source
    │   ├── SourceChangedError       the source changed while it was read
    │   └── SyncError                the device did not take what was written
    ├── TreeError          a tree to save or restore that does not fit: missing, unexpected, wrong shape
    ├── VariableError      a live variable used in a way that makes no sense (a ValueError)
    ├── VariableTypeError  the same, where callers expect a TypeError
    ├── VariableIndexError the same, where callers expect an IndexError
    ├── MissingPackageError  an optional package that a call needs is not here (an ImportError)
    └── VerificationError  two checkpoints differ, or one differs from its record

A message says what was expected, what was found, where, and what to do.

``LayoutWarning`` and ``CheckpointWarning`` are no errors: see there. ``shorten`` makes the text of a value for a message.
"""

from collections.abc import Iterator
from typing import Any, Literal

Fault = Literal["", "refused", "forbidden", "unavailable", "slow"]
"""A fault of a bucket as a whole; see ``StorageError``."""


class ReshardError(Exception):
    """Base of every error raised on purpose by this project.

    Attributes:
        target: the target that it concerns, if a conversion has several; None if it concerns all
            of them, or there is one.
    """

    target: str | None = None


class LayoutError(ReshardError, ValueError):
    """A mesh, layout, layout map or layout file that makes no sense."""


class CheckpointWarning(UserWarning):
    """A part of a checkpoint was left out, or may be missing. Given by calls that return no report."""


class LayoutWarning(UserWarning):
    """A layout that does less than it seems to say, such as a key that matches no tensor.

    Given by calls that return no report. ``warnings.simplefilter("error", LayoutWarning)`` makes
    errors of them.
    """


class MissingChunksWarning(CheckpointWarning):
    """Chunks that are not stored, for which the fill value, mostly 0, is taken.

    Given by calls that return no report. ``missing_chunks="refuse"`` makes an error of it, ``"allow"`` leaves it out.
    """


class FormatError(ReshardError):
    """A checkpoint that cannot be understood."""


class NotACheckpointError(FormatError):
    """Nothing at this place that any reader knows."""


class IncompleteCheckpointError(FormatError):
    """A checkpoint whose writer never committed it."""


class CorruptError(FormatError):
    """Stored bytes that contradict their own metadata."""


class PlanError(ReshardError):
    """A conversion that makes no sense, found before a byte moves."""


class MemoryBudgetError(PlanError):
    """No strategy fits the allowed memory; carries the smallest that does.

    Attributes:
        smallest_bytes: the smallest ``max_memory`` for which the same conversion plans.
    """

    def __init__(self, message: str, smallest_bytes: int) -> None:
        super().__init__(message)
        self.smallest_bytes = smallest_bytes


class StorageError(ReshardError):
    """The file system or the bucket said no: missing, full, forbidden or busy.

    Attributes:
        fault: a fault of the bucket as a whole, for any request: ``"refused"`` (no such bucket, or credentials that it does
            not take), ``"forbidden"`` (no permission for this request), ``"unavailable"`` or ``"slow"`` (the same may work
            later); "" for any other error.
        finding: for a fault, the message without the remedy and without the store's own words.
    """

    fault: Fault = ""
    finding: str = ""


class MissingError(StorageError, FileNotFoundError):
    """Nothing is at the path of a checkpoint or of a layout file that is to be read."""


class ForbiddenError(StorageError, PermissionError):
    """The file system or the bucket gives no permission."""


class TargetExistsError(StorageError, FileExistsError):
    """Something is already at the target; nothing was touched."""


class TargetBusyError(StorageError):
    """Another live process is writing to the target; nothing was touched."""


class ResumeError(StorageError):
    """The leftovers of an unfinished run belong to another source, plan or option; nothing was touched."""


class SourceChangedError(StorageError):
    """The source changed while it was read; the output was discarded."""


class SyncError(StorageError):
    """The device did not take all written bytes, so none of them can be trusted."""


class TreeError(ReshardError, ValueError):
    """A tree to save, or to restore onto, that does not fit; the message names every such tensor."""


class VariableError(ReshardError, ValueError):
    """A live variable, or a piece of one, used in a way that makes no sense."""


class VariableTypeError(ReshardError, TypeError):
    """A live variable given something of a type it cannot take."""


class VariableIndexError(ReshardError, IndexError):
    """A row, slice or axis that a live variable does not have."""


class MissingPackageError(ReshardError, ImportError):
    """An optional package that a call needs is not installed, or not set up for it."""


class VerificationError(ReshardError):
    """Two checkpoints differ, or one differs from its own record."""


MAX_SHOWN_CHARACTERS = 120
"""Characters of a value in a message, at most."""

_MAX_SHOWN_BITS = 1 << 10
"""Of a number: Python refuses to write one of more than 4,300 digits."""

_BRACKETS = {list: ("[", "]"), tuple: ("(", ")"), dict: ("{", "}"), set: ("{", "}"), frozenset: ("frozenset({", "})")}  # fmt: skip


def shorten(value: object, most: int = 80) -> str:
    """The text of a value for a message, cut after ``most`` characters (at most 120).

    It is cut while it is made: a value from a stranger may have millions of parts, contain itself, or share parts so that its whole text
    would fill the memory. Each visited part adds at least one character, so the characters limit the steps and the depth.

    >>> shorten([1, "a", (2,)]), shorten("a" * 90, 12)
    ("[1, 'a', (2,)]", "'aaaaaaaa...")
    """
    text = ""
    for part in _parts(value):
        text += part
        if len(text) > most:
            return f"{text[: most - 3]}..."
    return text


def _parts(value: Any) -> Iterator[str]:
    """The text of a value, part by part; a container gives its bracket before its first item is visited."""
    brackets = next((found for kind, found in _BRACKETS.items() if isinstance(value, kind)), None)
    if brackets is not None and (value or not isinstance(value, set | frozenset)):
        yield brackets[0]
        for number, item in enumerate(value.items() if isinstance(value, dict) else value):
            if number:
                yield ", "
            yield from _parts(item[0] if isinstance(value, dict) else item)
            if isinstance(value, dict):
                yield ": "
                yield from _parts(item[1])
        yield ",)" if isinstance(value, tuple) and len(value) == 1 else brackets[1]
    elif isinstance(value, str | bytes | bytearray):
        yield repr(value[: MAX_SHOWN_CHARACTERS + 1])
    elif isinstance(value, int) and value.bit_length() > _MAX_SHOWN_BITS:
        yield f"a number of {value.bit_length():,} bits"
    else:
        yield repr(value)
