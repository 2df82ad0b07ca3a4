"""A storage root that is a prefix in a bucket.

A bucket has no links, so a path below the root is the root's URL followed by the names. The operator decides where the
server's credentials reach: a name that they may not look at is answered as if nothing were there, unless they may not
look at the root either. Endpoints and credentials come from the server's environment and the file
``RESHARD_BUCKETS``, never from clients.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TypeVar

from reshard.errors import MissingError, StorageError
from reshard.formats.registry import is_there
from reshard.storage.location import Location, locate
from reshard_server.errors.problems import INVALID, STORAGE_SLOW, ProblemError, problem_of

T = TypeVar("T")

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

    def resolve(self, text: str, names: tuple[str, ...], *, target: bool) -> Location:  # noqa: ARG002  of the interface
        """The URL; nothing is looked up."""
        try:
            return locate("/".join((str(self.place), *names)))
        except StorageError as error:  # longer than a key may be
            raise ProblemError(
                INVALID,
                f"{text[:200]!r} cannot be the name of an object in a bucket: it is too long; choose a shorter path",
            ) from error

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
        try:
            return self.calls.run(call, seconds)
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
            problem.detail = problem.detail.replace(str(self.place), self.name)
            raise problem from None
