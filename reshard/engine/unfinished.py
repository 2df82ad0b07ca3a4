"""How a run ends: what it has done is removed, or kept for another run to go on with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from reshard.engine.journal import has_finished, read_header
from reshard.engine.ledger import Ledger
from reshard.errors import (
    FormatError,
    ReshardError,
    ResumeError,
    SourceChangedError,
    StorageError,
    SyncError,
    VerificationError,
)
from reshard.layout.sizes import format_bytes
from reshard.storage.staging import Staging, dissolve

NOT_BELIEVED = (VerificationError, FormatError, SyncError, SourceChangedError)
"""After these nothing that was written is worth going on with."""


@contextmanager
def kept_where_useful(staging: Staging, ledger: Ledger) -> Iterator[None]:
    """Removes the held staging folder at the end, unless the block fails and can be gone on with.

    The error then says so: what is kept, where, and that the same command goes on. A ResumeError
    leaves the folder as it is.
    """
    try:
        yield
    except ResumeError:
        raise
    except BaseException as error:
        if _is_published(staging):
            error.add_note(_published(staging))
        elif isinstance(error, NOT_BELIEVED) or not _has_something(staging):
            dissolve(staging)
        else:
            _tell(error, _kept(staging, ledger))
        raise
    try:
        dissolve(staging)
    except BaseException as error:
        error.add_note(_published(staging))
        raise


def _is_published(staging: Staging) -> bool:
    """Whether the folder that the journal speaks of is the target already."""
    try:
        header = read_header(staging.journal)
        return header is not None and os.lstat(staging.target).st_ino == header.root
    except (StorageError, ResumeError, OSError):
        return False


def _published(staging: Staging) -> str:
    return f"{str(staging.target)!r} is published and whole"


def _has_something(staging: Staging) -> bool:
    try:
        return has_finished(staging.journal)
    except StorageError:
        return True  # what cannot be read now may be read later


def _kept(staging: Staging, ledger: Ledger) -> str:
    share = 100 * ledger.moved_bytes // ledger.total_bytes if ledger.total_bytes else 100
    return (
        f"no target was published; what is done ({share} % of {format_bytes(ledger.total_bytes)}) was kept in {str(staging.folder)!r}: "
        "run the same again to go on with it, or start over (restart)"
    )


def _tell(error: BaseException, kept: str) -> None:
    """Adds it to the message of an error of ours, else as a note."""
    if isinstance(error, ReshardError) and len(error.args) == 1:
        error.args = (f"{error}; {kept}",)
    else:
        error.add_note(kept)
