"""A storage root that is a prefix in a bucket.

There are no links in a bucket, so that a path below the root is the root's URL with the names behind it. Where the
server's credentials reach is up to the operator: a name that they may not look at is answered as if nothing were there,
unless they may not look at the root either. Endpoints and credentials come from the server's environment and the file
``RESHARD_BUCKETS``, never from clients.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from reshard import is_checkpoint
from reshard.errors import MissingError, StorageError
from reshard.surface.places import Location, locate
from reshard_server.auth.timed_calls import TimedCalls
from reshard_server.errors.problems import INVALID, STORAGE_SLOW, ProblemError, problem_of

LOG = logging.getLogger(__name__)

LOOK_SECONDS = 20.0
"""How long a request waits for a bucket; the client of the bucket itself may go on trying for minutes."""

CALLS_AT_ONCE = 24
"""Of one root."""

T = TypeVar("T")


@dataclass(frozen=True)
class BucketRoot:
    """A root in a bucket; implements ``root_paths.Root``.

    Attributes:
        name: by which clients know it.
    """

    name: str
    place: Location
    calls: TimedCalls = field(default_factory=lambda: TimedCalls(CALLS_AT_ONCE))

    def resolve(self, text: str, names: tuple[str, ...], *, target: bool) -> Location:  # noqa: ARG002
        """The URL; nothing is looked up."""
        try:
            return locate("/".join((str(self.place), *names)))
        except StorageError as error:  # longer than a key may be
            raise ProblemError(
                INVALID,
                f"{text[:200]!r} cannot be the name of an object in a bucket: it is too long; choose a shorter path",
                remedy="choose a shorter path",
            ) from error

    def has(self, place: Location) -> bool:
        """A name that the credentials may not look at is not there, unless they may not look at the root either."""
        return self.ask(lambda: self._is_there(place))

    def _is_there(self, place: Location) -> bool:
        try:
            return place.exists() or is_checkpoint(str(place))
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
