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

``LayoutWarning`` and ``CheckpointWarning`` are no errors: see there.
"""

from typing import Literal

Fault = Literal["", "refused", "forbidden", "unavailable", "slow"]
"""What is wrong with a bucket as a whole; see ``StorageError``."""


class ReshardError(Exception):
    """Base of every error raised on purpose by this project.

    Attributes:
        target: the target that it is about, where a conversion has several; None where it is about
            all of them, or there is one.
    """

    target: str | None = None


class LayoutError(ReshardError, ValueError):
    """A mesh, layout, layout map or layout file that makes no sense."""


class CheckpointWarning(UserWarning):
    """A checkpoint of which a part was left out, or may be missing. Given by calls that return no report."""


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
        fault: what is wrong with a bucket as a whole, whatever is asked of it: ``"refused"`` (no such bucket, or credentials
            that it does not take), ``"forbidden"`` (no permission for this request), ``"unavailable"`` or ``"slow"``
            (the same may work later); "" for any other error.
        finding: of a fault, the message without the remedy and without the store's own words.
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
    """What an unfinished run left belongs to another source, plan or option; nothing was touched."""


class SourceChangedError(StorageError):
    """The source changed while it was read; the output was discarded."""


class SyncError(StorageError):
    """The device did not take what was written, so that none of it can be trusted."""


class TreeError(ReshardError, ValueError):
    """A tree to save or to restore onto that does not fit; names every tensor that does not."""


class VariableError(ReshardError, ValueError):
    """A live variable, or a piece of one, used in a way that makes no sense."""


class VariableTypeError(ReshardError, TypeError):
    """A live variable given something of a type it cannot take."""


class VariableIndexError(ReshardError, IndexError):
    """A row, slice or axis that a live variable does not have."""


class MissingPackageError(ReshardError, ImportError):
    """An optional package that a call needs is not installed, or not set up for it."""


class VerificationError(ReshardError):
    """Two checkpoints differ, or one differs from what it recorded of itself."""
