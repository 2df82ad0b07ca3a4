"""A storage root that is a prefix in a bucket.

There are no links in a bucket, so that a path below the root is the root's URL with the names behind it. Where the
server's credentials reach is up to the operator: a name that they may not look at is answered as if nothing were there,
unless they may not look at the root either. Endpoints and credentials come from the server's environment and the file
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
from reshard.surface.places import Location, is_there, locate
from reshard_server.errors.problems import INVALID, STORAGE_SLOW, ProblemError, problem_of

T = TypeVar("T")

SLOT_SECONDS = 2.0
"""How long a call waits for a thread."""


class TimedCalls:
    """Runs calls of one storage.

    A call that hangs keeps its thread until the storage's client gives up. When all threads hang, later calls give up
    soon, so that a storage that hangs holds up nobody else.
    """

    def __init__(self, at_most: int) -> None:
        self._slots = threading.Semaphore(at_most)

    def run(self, call: Callable[[], T], seconds: float) -> T:
        """What the call returns or raises. Raises TimeoutError if that takes longer; the call then ends unheard."""
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
"""How long a request waits for a bucket; the client of the bucket itself may go on trying for minutes."""

CALLS_AT_ONCE = 24
"""Of one root."""


@dataclass(frozen=True)
class BucketRoot:
    """A root in a bucket; implements ``root_paths.Root``.

    Attributes:
        name: by which clients know it.
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
        """A name that the credentials may not look at is not there, unless they may not look at the root either."""
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
