"""CheckpointPath: the path of a checkpoint that a call reads, with its location."""

from __future__ import annotations

from functools import cached_property
from typing import get_args

from msgspec import Struct
from msgspec.structs import replace

from reshard.arguments import Unlisted, check_choice
from reshard.formats.format import PlaceNames
from reshard.storage.buckets.counts import so_far
from reshard.storage.location import Location, locate
from reshard.storage.requests import NONE, Requests


class CheckpointPath(Struct, frozen=True, dict=True):
    """A checkpoint that a call reads.

    Attributes:
        path: as messages name it.
        root: its location. One listing of a bucket answers every later lookup of this call (``Store.remembered``). The
            location sees no change after that, so it is not kept for the next call.
        before: the requests to buckets that this process had made before it.
        unlisted: the treatment of tensors and files that no index lists.
        deltas: the folders of deltas over it (``formats/delta``), in any order.
    """

    path: str
    root: Location
    before: Requests = NONE
    unlisted: Unlisted = "leave"
    deltas: tuple[Location, ...] = ()

    @cached_property
    def names(self) -> PlaceNames:
        """The names at its location, which the whole call looks at."""
        return PlaceNames(self.root)

    @classmethod
    def at(cls, path: str, unlisted: Unlisted = "leave") -> CheckpointPath:
        """The checkpoint at a path or URL; nothing is looked up yet.

        Raises as ``locate``, and PlanError for a choice that does not exist.
        """
        check_choice("unlisted", unlisted, get_args(Unlisted))
        return cls(path, locate(path).remembered(), so_far(), unlisted)

    def below(self, name: str) -> CheckpointPath:
        """A folder in it."""
        return replace(self, path=f"{self.path.rstrip('/')}/{name}", root=self.root / name)
