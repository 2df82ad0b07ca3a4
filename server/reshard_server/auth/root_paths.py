"""Paths below the storage roots: the rights of a caller, and the real places.

A root is a local folder (``local_root``) or a prefix in a bucket (``bucket_root``); routes and jobs need not know which.
Everything that the caller may not see is answered as if it did not exist.

The result is a real place: a path without links, or a URL. It is looked up again right before it is used (``recheck``),
since links may have changed while a conversion waited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from reshard.storage.location import Location
from reshard_server.auth.bucket_root import BucketRoot
from reshard_server.auth.local_root import LocalRoot, Lookup, best_lookup
from reshard_server.auth.path_rules import missing, nothing, parts, reserved
from reshard_server.auth.tokens import Caller
from reshard_server.errors.problems import INVALID, ProblemError

T = TypeVar("T")

OPEN_SECONDS = 120.0
"""Seconds that a request waits for the metadata of a checkpoint."""


class Root(Protocol):
    """A storage root: the operations that its kind decides."""

    @property
    def place(self) -> Location:
        """Its place, without links."""
        ...

    def resolve(self, text: str, names: tuple[str, ...], *, target: bool) -> Location:
        """The place of names below it; nothing need be there. ProblemError if they lead out.

        Args:
            text: the client's path, for problems.
            target: the last name is not followed if it is a link.
        """
        ...

    def has(self, place: Location) -> bool:
        """True if something is there, or the files of a checkpoint begin so."""
        ...

    def ask(self, call: Callable[[], T], seconds: float = ...) -> T:
        """The result of a call that reads below the root.

        Raises the call's errors, and ProblemError if the storage refuses, fails or does not answer in time.
        """
        ...


@dataclass(frozen=True)
class Roots:
    """The storage roots of a server, by name."""

    roots: Mapping[str, Root]

    @classmethod
    def of(cls, places: Mapping[str, Location], lookup: Lookup | None = None) -> Roots:
        """The roots at these places; ``lookup`` follows links, by the kernel if it can."""
        by = lookup or best_lookup()
        return cls(
            {
                name: LocalRoot(place, by) if place.traits.renames else BucketRoot(name, place)
                for name, place in places.items()
            }
        )

    def readable(self, caller: Caller, text: str) -> Location:
        """The real place, existing or not; ProblemError if the caller may not read it."""
        root, _ = parts(text)
        if not caller.may_read(root):
            raise nothing(text)
        return self.recheck(text)

    def existing(self, caller: Caller, text: str) -> Location:
        """The real place of a file, a folder or the prefix of a checkpoint's files; ProblemError if there is none, or if
        the caller may not read it."""
        place = self.readable(caller, text)
        if not self._root(text).has(place):
            raise missing(text)
        return place

    def changeable(self, caller: Caller, text: str) -> Location:
        """The real place of something that exists; ProblemError if the caller may not both read and change it."""
        place = self.existing(caller, text)
        root, _ = parts(text)
        if not caller.may_write(root):
            raise nothing(text)
        self._check_reserved(text, place, "choose another checkpoint")
        return place

    def writable(self, caller: Caller, text: str) -> Location:
        """The real place of a target; ProblemError if the caller may not write it.

        Its parents may be missing. Its last name is not followed: if it is a link, the library refuses it when the
        target is written.
        """
        root, _ = parts(text)
        if not caller.may_write(root):
            raise nothing(text)
        return self.recheck(text, target=True)

    def folder(self, caller: Caller, root: str, prefix: str) -> Location:
        """The real place of a root, or of a folder below it, for listing."""
        if prefix:
            return self.existing(caller, f"{root}/{prefix}")
        if root not in self.roots or not caller.may_read(root):
            raise nothing(root)
        return self.roots[root].place

    def recheck(self, text: str, *, target: bool = False) -> Location:
        """The real place for any caller, to be used right away.

        Args:
            target: like ``writable``: refuses folders of the server and the library.
        """
        _, names = parts(text)
        place = self._root(text).resolve(text, names, target=target)
        if target:
            self._check_reserved(text, place, "choose another target")
        return place

    def ask(self, text: str, call: Callable[[], T], seconds: float | None = None) -> T:
        """The result of a call that reads at a client's path; see ``Root.ask``."""
        root = self._root(text)
        return root.ask(call) if seconds is None else root.ask(call, seconds)

    def place_of(self, root: str) -> Location:
        """The place of a root."""
        return self.roots[root].place

    def _root(self, text: str) -> Root:
        found = self.roots.get(text.partition("/")[0])
        if found is None:
            raise nothing(text)
        return found

    def _check_reserved(self, text: str, place: Location, remedy: str) -> None:
        """Raises ProblemError if the path or its real place belongs to the server or the library."""
        _, names = parts(text)
        below = place.path.removeprefix(self._root(text).place.path).split("/")
        why = reserved((*names, *below))
        if why is not None:
            raise ProblemError(
                INVALID,
                f"{text[:200]!r} {why}; {remedy}",
                remedy=remedy,
            )
