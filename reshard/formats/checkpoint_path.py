"""CheckpointPath: the path of a checkpoint that a call reads, with its location."""

from __future__ import annotations

from msgspec import Struct

from reshard.storage.buckets.counts import so_far
from reshard.storage.location import Location, locate
from reshard.storage.requests import NONE, Requests


class CheckpointPath(Struct, frozen=True):
    """A checkpoint that a call reads.

    Attributes:
        path: as messages name it.
        root: its location. One listing of a bucket answers every later lookup of this call (``Store.remembered``). The
            location sees no change after that, so it is not kept for the next call.
        before: the requests to buckets that this process had made before it.
    """

    path: str
    root: Location
    before: Requests = NONE

    @classmethod
    def at(cls, path: str) -> CheckpointPath:
        """The checkpoint at a path or URL; nothing is looked up yet. Raises as ``locate``."""
        return cls(path, locate(path).remembered(), so_far())

    def below(self, name: str) -> CheckpointPath:
        """A folder in it."""
        return CheckpointPath(f"{self.path.rstrip('/')}/{name}", self.root / name, self.before)
