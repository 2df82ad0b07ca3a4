"""Paths below the storage roots: the rights of a caller, and the real places.

A root is a local folder (``local_root``) or a prefix in a bucket; routes and jobs need not know which.
Everything that the caller may not see is answered as if it did not exist.

The result is a real place: a path without links, or a URL. It is looked up again right before it is used (``recheck``),
since links may have changed while a conversion waited.

A bucket has no links, so a path below its root is the root's URL followed by the names. The operator decides where the
server's credentials reach: a name that they may not look at is answered as if nothing were there, unless they may not
look at the root either. Endpoints and credentials come from the server's environment and the file
``RESHARD_BUCKETS``, never from clients.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from reshard.errors import MissingError, StorageError
from reshard.formats.registry import is_there
from reshard.storage.hub.store import hub_branch
from reshard.storage.location import Location, is_in_hub, locate
from reshard_server.auth.hub_names import hub_url, named_for_clients
from reshard_server.auth.local_root import (
    LocalRoot,
    Lookup,
    best_lookup,
    missing,
    nothing,
    parts,
    reserved,
)
from reshard_server.auth.tokens import Caller
from reshard_server.errors.problems import INVALID, STORAGE_SLOW, ProblemError, problem_of

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
                name: BucketRoot(name, place) if place.local is None else LocalRoot(place, by)
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
        return self.roots[root].resolve(root, (), target=False)

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
            raise ProblemError(INVALID, f"{text[:200]!r} {why}; {remedy}", remedy=remedy)


SLOT_SECONDS = 2.0
"""Seconds that a call waits for a thread."""


class TimedCalls:
    """Runs calls of one storage.

    A hanging call keeps its thread until the storage's client gives up. When all threads hang, later calls give up
    soon, so a hanging storage delays no other storage.
    """

    def __init__(self, at_most: int) -> None:
        self._slots = threading.Semaphore(at_most)

    def run(self, call: Callable[[], T], seconds: float) -> T:
        """The result of the call, or its exception. Raises TimeoutError if it takes longer; the call then ends unheard."""
        deadline = time.monotonic() + seconds
        if not self._slots.acquire(timeout=min(seconds, SLOT_SECONDS)):
            raise TimeoutError
        answer: Future[T] = Future()
        # A daemon: a storage that hangs must not keep a server from ending.
        thread = threading.Thread(
            target=copy_context().run, args=(self._answer, call, answer), daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no more threads; a kept slot would be lost for good
            self._slots.release()
            raise
        wait([answer], deadline - time.monotonic())
        if not answer.done():
            raise TimeoutError
        return answer.result()

    def _answer(self, call: Callable[[], T], answer: Future[T]) -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001  it is raised where the answer is awaited
            answer.set_exception(error)
        finally:
            self._slots.release()


LOG = logging.getLogger(__name__)

LOOK_SECONDS = 20.0
"""Seconds that a request waits for a bucket; the bucket's own client may go on trying for minutes."""

CALLS_AT_ONCE = 24
"""Threads of one root."""


@dataclass(frozen=True)
class BucketRoot:
    """A root in a bucket; implements ``root_paths.Root``.

    Attributes:
        name: its name for clients.
    """

    name: str
    place: Location
    calls: TimedCalls = field(default_factory=lambda: TimedCalls(CALLS_AT_ONCE))
    # Of their own, since a path may be looked up within a call.
    commits: TimedCalls = field(default_factory=lambda: TimedCalls(CALLS_AT_ONCE))

    def resolve(self, text: str, names: tuple[str, ...], *, target: bool) -> Location:
        """The URL. Nothing is looked up but the commit of what is read on the hub."""
        if is_in_hub(root := str(self.place)):
            return self._on_hub(text, hub_url(root, names), target=target)
        try:
            return locate("/".join((root, *names)))
        except StorageError as error:  # longer than a key may be
            raise ProblemError(
                INVALID,
                f"{text[:200]!r} cannot be the name of an object in a bucket: it is too long; choose a shorter path",
            ) from error

    def _on_hub(self, text: str, url: str, *, target: bool) -> Location:
        """A place in a repository: a branch if it is a target, else a commit, which is looked up."""
        try:
            return (
                hub_branch(url)
                if target
                else self._timed(self.commits, lambda: locate(url), LOOK_SECONDS)
            )
        except MissingError as error:
            raise missing(text) from error
        except StorageError as error:
            raise ProblemError(INVALID, self._worded(str(error))) from error

    def has(self, place: Location) -> bool:
        """True if something is there. Names that the credentials may not look at count as absent, unless the root is forbidden too."""
        return self.ask(lambda: self._is_there(place))

    def _is_there(self, place: Location) -> bool:
        try:
            return is_there(place)
        except StorageError as error:
            if error.fault != "forbidden":
                raise
            LOG.warning("%s", error)
        try:
            self.place.entries()
        except MissingError as error:
            if error.fault:
                raise
        return False

    def ask(self, call: Callable[[], T], seconds: float = LOOK_SECONDS) -> T:
        return self._timed(self.calls, call, seconds)

    def _timed(self, calls: TimedCalls, call: Callable[[], T], seconds: float) -> T:
        try:
            return calls.run(call, seconds)
        except TimeoutError:
            LOG.warning("no answer within %.0f seconds from %s", seconds, self.place)
            raise ProblemError(
                STORAGE_SLOW,
                f"the storage of the root {self.name!r} did not answer within {seconds:.0f} seconds; send the request again "
                "later",
            ) from None
        except StorageError as error:
            if not error.fault:
                raise
            LOG.warning("%s", error)
            problem = problem_of(error)
            problem.detail = self._worded(problem.detail)
            raise problem from None

    def _worded(self, text: str) -> str:
        root = str(self.place)
        return (
            named_for_clients(text, root, self.name)
            if is_in_hub(root)
            else text.replace(root, self.name)
        )
