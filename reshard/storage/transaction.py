"""The protocol of a transaction: one unfinished target, which appears whole or not at all.

The files of the target are written below ``root``, where no reader takes them for a checkpoint. Records list the finished work,
so that a later run can resume; they are texts, and opaque to the store.

The order of the calls; those in brackets are optional::

    a new run       begin                                                   } append…  close
    a resumed run   earlier  keep_files  records  files  remove…  rewrite   }
    commit          mark  [written]  [staged]  commit  abort
    abort           abort

A run commits after it has closed its records. ``abort`` after ``commit`` removes temporary files; the target stays. A run that
calls neither leaves its work for a later run to resume. After an error of ``commit``, ``is_committed`` tests if the target has
appeared. ``unpublish`` comes before the ``abort`` that removes a finished target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from msgspec import Struct

from reshard.errors import StorageError
from reshard.storage.location import Location

CheckReplaced = Callable[[Location], None]
"""A function that raises if an existing target must not be replaced."""

Prove = Callable[[Mapping[str, str]], None]
"""A function that raises if a file is not the one that was put; it gets the versions of the transaction's own files, by path."""


class Earlier(Struct, frozen=True):
    """The leftovers of an unfinished run.

    Attributes:
        made_by: that run, as it describes itself.
        is_trusted: true if every chunk that its records name is stored, unless it was removed since. False if the host
            was restarted since, or is another one: then each chunk must be read and checked first.
        recorded_ns: the time of the last record, by the clock of the file system; None if files have versions.
    """

    made_by: Mapping[str, Any]
    is_trusted: bool
    recorded_ns: int | None = None


class Records(Protocol):
    """The finished work of a target, one text after the other: records of an earlier run, and of this one."""

    def left_by(self) -> Mapping[str, Any] | None:
        """The run that left records, as it describes itself, even if it cannot be resumed; None for no run.

        Raises ResumeError if another version of this program wrote them.
        """
        ...

    def has_parts(self) -> bool:
        """True if parts of a conversion to the target were begun (``storage.parts``)."""
        ...

    def earlier(self) -> Earlier | None:
        """The leftovers of an unfinished run that can be resumed; None if there are none.

        Raises ResumeError as ``left_by``.
        """
        ...

    def records(self) -> Iterator[bytes]:
        """The records of the resumed run, up to the first that was damaged or not written whole."""
        ...

    def begin(self, made_by: Mapping[str, Any]) -> None:
        """Removes the leftovers of earlier runs, and begins with no file and no record."""
        ...

    def rewrite(self, made_by: Mapping[str, Any], records: Iterable[str]) -> None:
        """Keeps the files of the resumed run; these records replace its own, durably."""
        ...

    def append(self, record: str) -> None:
        """Adds a record of stored work; it has no line break."""
        ...

    def close(self) -> None:
        """Ends the records; may be called twice."""
        ...


class TargetFiles(Protocol):
    """The files of an unfinished target that one run holds alone."""

    @property
    def root(self) -> Location:
        """The folder below which everything is written."""
        ...

    def check(self) -> None:
        """Raises TargetBusyError if another run may have the target by now."""
        ...

    def files(self) -> Iterator[str]:
        """Every file below ``root``, by its path from there."""
        ...

    def remove(self, file: str, offset: int | None = None, /) -> None:
        """Removes a file below ``root``, if it is there.

        ``offset``: of a range of it that is written again; the file stays if the store can write over the range.
        """
        ...

    def keep_files(self) -> None:
        """Secures the files of the resumed run, before any of them is removed."""
        ...


class Transaction(Records, TargetFiles, Protocol):
    """A target that one run holds alone.

    It begins anew (``begin``) or takes over the work of an earlier run (``earlier``, ``records``, ``rewrite``); then files are
    written below ``root`` and records appended; then it is committed, or aborted, or left for a later run to resume.
    """

    @property
    def target(self) -> str:
        """The users' text of the target."""
        ...

    @property
    def place(self) -> str:
        """The place of unfinished work, for messages."""
        ...

    def mark(self, files: Mapping[str, bytes]) -> None:
        """Sets the files that mark the target as whole, by path from ``root``; no reader sees them before ``commit``.

        They are written in their order, after everything else.
        """
        ...

    def staged(self) -> Location:
        """The future target in its current state; called after ``mark``."""
        ...

    def written(self) -> Location:
        """The future target, to be read from the store and not from memory; called after ``mark``."""
        ...

    def commit(
        self, *, overwrite: bool, check: CheckReplaced | None = None, prove: Prove | None = None
    ) -> None:
        """Makes the written files the target, all of it durable, in one step.

        An existing target is replaced only with ``overwrite``, and if ``check`` does not raise for it. If files have
        versions, ``prove`` is called right before that step; an error that it raises prevents the step.
        """
        ...

    def is_committed(self) -> bool:
        """True if the files of this transaction are the target already. False if that cannot be looked up."""
        ...

    def unpublish(self, index: str, /) -> None:
        """Makes the finished target an unfinished one, which ``abort`` removes.

        ``index``: the file that goes first if files are removed one by one, as in buckets.

        Raises MissingError if there is no target.
        """
        ...

    def abort(self) -> None:
        """Removes everything but the target; files that cannot be removed stay."""
        ...


def may_be_resumed(records: Records) -> bool:
    """True if there is a record of finished work, or if that cannot be looked up now."""
    try:
        return next(records.records(), None) is not None
    except StorageError:
        return True  # records that cannot be read now may be readable later
