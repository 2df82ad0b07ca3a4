"""Ends a run: removes what it wrote, or keeps it for the run that resumes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from reshard.conversion.resume.journal import has_finished, read_header
from reshard.engine.accumulator import Accumulator
from reshard.errors import (
    FormatError,
    ReshardError,
    ResumeError,
    SourceChangedError,
    StorageError,
    SyncError,
    VerificationError,
)
from reshard.geometry.sizes import format_bytes
from reshard.storage.staging import Staging, dissolve

NOT_BELIEVED = (VerificationError, FormatError, SyncError, SourceChangedError)
"""After these nothing that was written is worth going on with."""

OF_THE_SOURCE = (SourceChangedError, FormatError)
"""These are about all targets, whichever of them was at work."""


class Open(Struct):
    """A target that a run writes, with its held staging folder.

    Attributes:
        is_begun: whether what is in the folder is this run's, or was taken over by it.
        is_published: whether the target is there, and the folder is only to be removed.
    """

    staging: Staging
    ledger: Accumulator
    is_begun: bool = False
    is_published: bool = False


@contextmanager
def kept_where_useful(targets: Sequence[Open], count: int = 1) -> Iterator[None]:
    """Where the block fails, removes the held staging folders except those that a run can resume.

    ``targets`` are those that are held then, of ``count`` that were asked for. The error says what is
    kept, where, and that the same command goes on. A ResumeError leaves the folder that it is about
    as it is.
    """
    try:
        yield
    except BaseException as error:
        kept = [one for one in targets if _is_kept(one, error, count)]
        if kept:
            _tell(error, _kept(kept, count))
        raise


def removed_once_published(target: Open) -> None:
    """Removes what a published target leaves."""
    target.is_published = True
    dissolve(target.staging)


def _is_kept(target: Open, error: BaseException, count: int) -> bool:
    """Whether the error leaves something of a target to resume; removes the rest."""
    staging = target.staging
    named = None if isinstance(error, OF_THE_SOURCE) else getattr(error, "target", None)
    is_about_it = named in (None, str(staging.target))
    if isinstance(error, ResumeError) and is_about_it:
        return False
    if target.is_published or _is_published(staging):
        error.add_note(_published(staging))
        return False
    is_lost = isinstance(error, NOT_BELIEVED) and is_about_it and (target.is_begun or count == 1)
    if is_lost or not _has_something(staging):
        dissolve(staging)
        return False
    return target.is_begun or count == 1


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


def _kept(kept: Sequence[Open], count: int) -> str:
    if count == 1:
        (one,) = kept
        return (
            f"no target was published; what is done ({_share(one)}) was kept in {str(one.staging.folder)!r}: "
            "run the same again to resume it, or start over (restart)"
        )
    parts = (
        f"of {str(one.staging.target)!r} ({_share(one)}) in {str(one.staging.folder)!r}"
        for one in kept
    )
    return f"what is done was kept: {', '.join(parts)}; run the same again to resume it, or start over (restart)"


def _share(target: Open) -> str:
    ledger = target.ledger
    share = 100 * ledger.moved_bytes // ledger.total_bytes if ledger.total_bytes else 100
    return f"{share} % of {format_bytes(ledger.total_bytes)}"


def _tell(error: BaseException, kept: str) -> None:
    """Adds it to the message of an error of ours, else as a note."""
    if isinstance(error, ReshardError) and len(error.args) == 1:
        error.args = (f"{error}; {kept}",)
    else:
        error.add_note(kept)
