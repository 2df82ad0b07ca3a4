"""Ends a run: removes what it wrote, or keeps it for the run that resumes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from reshard.conversion.target_job import OpenTarget
from reshard.errors import (
    FormatError,
    ReshardError,
    ResumeError,
    SourceChangedError,
    SyncError,
    VerificationError,
)
from reshard.geometry.sizes import format_bytes
from reshard.storage.transaction import may_be_resumed

UNTRUSTED_AFTER = (VerificationError, FormatError, SyncError, SourceChangedError)
"""After these errors nothing that was written can be resumed."""

ABOUT_THE_SOURCE = (SourceChangedError, FormatError)
"""These errors are about all targets, whichever of them was at work."""


@contextmanager
def kept_where_useful(targets: Sequence[OpenTarget], count: int = 1) -> Iterator[None]:
    """Removes the held staging folders if the block fails, except those that a run can resume.

    ``targets``: those that are held then, of ``count`` in the call. The error says what is kept, where,
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
    """Removes the temporary files of a published target."""
    target.is_published = True
    target.transaction.abort()


def _is_kept(target: OpenTarget, error: BaseException, count: int) -> bool:
    """True if the error leaves something of a target to resume; removes the rest."""
    transaction, is_begun = target.transaction, target.is_begun or count == 1
    is_about_it = _is_about(error, target)
    if isinstance(error, ResumeError) and is_about_it:
        return False
    if target.is_published or transaction.is_committed():
        error.add_note(f"{transaction.target!r} is published and whole")
        return False
    is_lost = isinstance(error, UNTRUSTED_AFTER) and is_about_it and is_begun
    if is_lost or not may_be_resumed(transaction):
        transaction.abort()
        return False
    return is_begun


def _is_about(error: BaseException, target: OpenTarget) -> bool:
    """True if an error names the target, or none."""
    named = None if isinstance(error, ABOUT_THE_SOURCE) else getattr(error, "target", None)
    return named in (None, target.transaction.target)


def _kept(kept: Sequence[OpenTarget], count: int) -> str:
    if count == 1:
        (target,) = kept
        return (
            f"no target was published; what is done ({_share(target)}) was kept in {target.transaction.place!r}: "
            "run the same again to resume it, or start over (restart)"
        )
    parts = (
        f"of {target.transaction.target!r} ({_share(target)}) in {target.transaction.place!r}"
        for target in kept
    )
    return f"what is done was kept: {', '.join(parts)}; run the same again to resume it, or start over (restart)"


def _share(target: OpenTarget) -> str:
    moved, total = target.books.moved_bytes, target.books.total_bytes
    share = 100 * moved // total if total else 100
    return f"{share} % of {format_bytes(total)}"


def _tell(error: BaseException, kept: str) -> None:
    """Adds ``kept`` to the message of a ReshardError, and to any other error as a note."""
    if isinstance(error, ReshardError) and len(error.args) == 1:
        error.args = (f"{error}; {kept}",)
    else:
        error.add_note(kept)
