"""Chosen: a checkpoint that a call reads, looked at once."""

from __future__ import annotations

from msgspec import Struct

from reshard.storage.location import Location, locate


class Chosen(Struct, frozen=True):
    """A checkpoint that a call reads.

    Attributes:
        path: as messages name it.
        root: where it is. A bucket is asked once: what one listing tells answers every later question of this call
            (``Store.remembered``). It notices no change, so that it is not kept for the next call.
    """

    path: str
    root: Location

    @classmethod
    def at(cls, path: str) -> Chosen:
        """The checkpoint at a path or URL; nothing is looked up yet. Raises as ``locate``."""
        return cls(path, locate(path).remembered())

    def below(self, name: str) -> Chosen:
        """A folder in it."""
        return Chosen(f"{self.path.rstrip('/')}/{name}", self.root / name)
