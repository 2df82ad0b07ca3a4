"""Ends a run: removes what it wrote, or keeps it for the run that resumes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from reshard.conversion.open_target import OpenTarget
from reshard.conversion.resume.journal import has_finished, read_header
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

UNTRUSTED_AFTER = (VerificationError, FormatError, SyncError, SourceChangedError)
"""After these errors nothing that was written can be resumed."""

ABOUT_THE_SOURCE = (SourceChangedError, FormatError)
"""These errors are about all targets, whichever of them was at work."""


@contextmanager
def kept_where_useful(targets: Sequence[OpenTarget], count: int = 1) -> Iterator[None]:
    """Where the block fails, removes the held staging folders except those that a run can resume.

    ``targets`` are those that are held then, of ``count`` in the call. The error says what is kept, where,
    and that the same command resumes it. A ResumeError leaves the folder that it is about as it is.
    """
    try:
        yield
    except BaseException as error:
        kept = [target for target in targets if _is_kept(target, error, count)]
        if kept:
            _tell(error, _kept(kept, count))
        raise


def removed_once_published(target: OpenTarget) -> None:
    """Removes what a published target leaves."""
    target.is_published = True
    dissolve(target.staging)


def _is_kept(target: OpenTarget, error: BaseException, count: int) -> bool:
    """Whether the error leaves something of a target to resume; removes the rest."""
    staging = target.staging
    named = None if isinstance(error, ABOUT_THE_SOURCE) else getattr(error, "target", None)
    is_about_it = named in (None, str(staging.target))
    if isinstance(error, ResumeError) and is_about_it:
        return False
    if target.is_published or _is_published(staging):
        error.add_note(_published(staging))
        return False
    is_lost = isinstance(error, UNTRUSTED_AFTER) and is_about_it and (target.is_begun or count == 1)
    if is_lost or not _has_something(staging):
        dissolve(staging)
        return False
    return target.is_begun or count == 1


def _is_published(staging: Staging) -> bool:
    """Whether what the journal is about is the target already."""
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


def _kept(kept: Sequence[OpenTarget], count: int) -> str:
    if count == 1:
        (target,) = kept
        return (
            f"no target was published; what is done ({_share(target)}) was kept in {str(target.staging.folder)!r}: "
            "run the same again to resume it, or start over (restart)"
        )
    parts = (
        f"of {str(target.staging.target)!r} ({_share(target)}) in {str(target.staging.folder)!r}"
        for target in kept
    )
    return f"what is done was kept: {', '.join(parts)}; run the same again to resume it, or start over (restart)"


def _share(target: OpenTarget) -> str:
    moved, total = target.accumulator.moved_bytes, target.accumulator.total_bytes
    share = 100 * moved // total if total else 100
    return f"{share} % of {format_bytes(total)}"


def _tell(error: BaseException, kept: str) -> None:
    """Adds it to the message of an error of ours, else as a note."""
    if isinstance(error, ReshardError) and len(error.args) == 1:
        error.args = (f"{error}; {kept}",)
    else:
        error.add_note(kept)
