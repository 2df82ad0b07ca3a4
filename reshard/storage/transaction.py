"""The protocol of a transaction: one target in the making, which appears whole or not at all.

What is written for the target lies below ``root``, where no reader takes it for a checkpoint. Records say what is done, so
that a later run can resume: they are texts, of whose content a store knows nothing.

The order of the calls; what is in brackets is left out where it is not needed::

    a new run       begin                                              } [open_elsewhere]  append…  [close_elsewhere]  close
    a resumed run   earlier  adopt  records  files  remove…  rewrite   }
    commit          mark  [written]  [staged]  commit  abort
    abort           abort

A run commits once it has closed its records. ``abort`` after ``commit`` removes what is temporary; the target stays. A run that
does neither leaves its work for a later run to resume. Where ``commit`` raised, ``is_committed`` says whether the target has
appeared. ``take_back`` comes before the ``abort`` that removes a finished target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from msgspec import Struct

from reshard.errors import StorageError
from reshard.storage.location import Location

CheckReplaced = Callable[[Location], None]
"""Raises where what is at a target must not be replaced."""

Prove = Callable[[Mapping[str, str]], None]
"""Raises where a file is not the one that was put; given are the versions of those that the transaction has put itself, by path."""


class Earlier(Struct, frozen=True):
    """What an unfinished run left.

    Attributes:
        made_by: what that run was, in its own words.
        is_trusted: whether every chunk that its records name is stored, unless somebody removed it. False if the host
            was restarted since, or is another one: then each chunk must be read and checked first.
        recorded_ns: when the last record was written, by the clock of the file system; None where files have versions.
    """

    made_by: Mapping[str, Any]
    is_trusted: bool
    recorded_ns: int | None = None


class Elsewhere(Struct, frozen=True):
    """What tasks must know of a transaction that do not run in threads of the process which holds it.

    Attributes:
        attempts: local folder in which each attempt to carry out a batch has a folder of its own; "" for a bucket.
        kernel: host and boot of the run. Tasks on another kernel sync what they write.
        lease: of a target in a bucket: its URL, and the run that must have it; None for a local target.
    """

    attempts: str
    kernel: tuple[str, str]
    lease: tuple[str, str] | None = None


class Records(Protocol):
    """What is done of a target, one text after the other: those of an earlier run, and those of this one."""

    def left_by(self) -> Mapping[str, Any] | None:
        """The run whose records are here, in its own words, whether or not it can be resumed; None for no run.

        Raises ResumeError where another version of this program wrote them.
        """
        ...

    def has_parts(self) -> bool:
        """Whether parts of a conversion to the target were begun (``storage.parts``)."""
        ...

    def earlier(self) -> Earlier | None:
        """What an unfinished run left that can be resumed; None for nothing.

        Raises ResumeError where another version of this program wrote it.
        """
        ...

    def records(self) -> Iterator[bytes]:
        """The records of the run that is resumed, up to the first that was damaged or not written whole."""
        ...

    def begin(self, made_by: Mapping[str, Any]) -> None:
        """Removes what earlier runs left, and begins with no file and no record."""
        ...

    def rewrite(self, made_by: Mapping[str, Any], records: Iterable[str]) -> None:
        """Keeps the files of the run that is resumed, with these records, which take the place of its own durably."""
        ...

    def append(self, record: str) -> None:
        """Adds a record of what is stored; it holds no line break."""
        ...

    def close(self) -> None:
        """Ends the records; may be called twice."""
        ...


class TargetFiles(Protocol):
    """The files of a target in the making, which one run holds alone."""

    @property
    def root(self) -> Location:
        """The folder below which everything is written."""
        ...

    def check(self) -> None:
        """Raises TargetBusyError where another run may have the target by now."""
        ...

    def files(self) -> Iterator[str]:
        """Every file below ``root``, by its path from there."""
        ...

    def remove(self, file: str) -> None:
        """Removes a file below ``root``, if it is there."""
        ...

    def adopt(self) -> None:
        """Makes sure of the files of the run that is resumed, before anything of them is removed."""
        ...

    def open_elsewhere(self) -> Elsewhere:
        """Gets ready for tasks in other processes, on any host. What tasks of earlier runs do has no effect from now on."""
        ...

    def close_elsewhere(self) -> None:
        """What such tasks still do has no effect on the target from now on, nor on a later run."""
        ...


class Transaction(Records, TargetFiles, Protocol):
    """A target that one run holds alone.

    It begins anew (``begin``) or takes over what an earlier run left (``earlier``, ``records``, ``rewrite``); then files are
    written below ``root`` and records appended; then it is committed, or aborted, or left for a later run to resume.
    """

    @property
    def target(self) -> str:
        """What will appear, as users name it."""
        ...

    @property
    def place(self) -> str:
        """Where unfinished work is kept, for messages."""
        ...

    def mark(self, files: Mapping[str, bytes]) -> None:
        """Gives the files that say that the target is whole, by path from ``root``; nobody sees them before ``commit``.

        They are written in their order, after everything else.
        """
        ...

    def staged(self) -> Location:
        """The target as it will be, as it is now; called after ``mark``."""
        ...

    def written(self) -> Location:
        """The target as it will be, to be read from the store and not from memory; called after ``mark``."""
        ...

    def commit(
        self, *, overwrite: bool, check: CheckReplaced | None = None, prove: Prove | None = None
    ) -> None:
        """Makes what was written the target, all of it durable, in one step.

        An existing target is replaced only with ``overwrite``, and if ``check`` does not raise for it. Where files have
        versions, ``prove`` is called right before that step; what it raises prevents it.
        """
        ...

    def is_committed(self) -> bool:
        """Whether the files of this transaction are the target already. False where that cannot be looked up."""
        ...

    def take_back(self, index: str) -> None:
        """Makes the finished target an unfinished one, which ``abort`` removes.

        ``index``: where files go one by one, as in buckets, this one goes first.

        Raises MissingError where there is no target.
        """
        ...

    def abort(self) -> None:
        """Removes everything but the target; what cannot be removed stays."""
        ...


def may_be_resumed(records: Records) -> bool:
    """Whether there is a record of anything done. True where that cannot be looked up now."""
    try:
        return next(records.records(), None) is not None
    except StorageError:
        return True  # what cannot be read now may be read later
