"""The objects below a prefix, listed once and kept in little memory."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec import Struct

from reshard.errors import StorageError
from reshard.storage.base import Entry, FileStatus
from reshard.storage.buckets import counts

if TYPE_CHECKING:
    from obstore.store import ObjectStore

BYTES_PER_OBJECT = 320
"""Memory that one listed object takes with a path of up to 160 characters (measured: 220 with 64)."""

MOST_OBJECTS = 2_000_000
"""A folder with more objects is no checkpoint; its listing alone would take 600 MB."""


class Listing(Struct, frozen=True):
    """Objects by their path from a folder, sorted: ``sizes`` and ``versions`` are in the order of ``paths``."""

    paths: Sequence[str]
    sizes: Sequence[int]
    versions: Sequence[str]

    def status(self, path: str) -> FileStatus | None:
        """The status of a path from the folder; "" is the folder itself."""
        place = bisect_left(self.paths, path)
        if place < len(self.paths) and self.paths[place] == path:
            return FileStatus("file", self.sizes[place], self.versions[place])
        if next(self._below(path), None) is None:
            return None
        return FileStatus("folder")

    def entries(self, folder: str) -> list[Entry]:
        """Every name in a folder, sorted; none if nothing is there."""
        begin = f"{folder}/" if folder else ""
        found: dict[str, bool] = {}
        place, end = self._range(begin)
        while place < end:
            name, slash, _ = self.paths[place][len(begin) :].partition("/")
            found[name] = bool(slash)
            place = place + 1 if not slash else bisect_left(self.paths, f"{begin}{name}0", place)
        return [Entry(name, is_folder) for name, is_folder in sorted(found.items())]

    def files(self, folder: str) -> Iterator[str]:
        """The path from a folder of every object below it."""
        skipped = len(folder) + 1 if folder else 0
        return (self.paths[place][skipped:] for place in self._below(folder))

    def _below(self, folder: str) -> Iterator[int]:
        return iter(range(*self._range(f"{folder}/" if folder else "")))

    def _range(self, begin: str) -> tuple[int, int]:
        """The range of paths that begin with ``begin`` and a slash; ``0`` is the character after the slash."""
        if not begin:
            return 0, len(self.paths)
        first = bisect_left(self.paths, begin)
        return first, bisect_left(self.paths, f"{begin[:-1]}0", first)


def list_objects(client: ObjectStore, folder: str, url: str) -> Listing:
    """Every object below a folder of a bucket, in one request for each thousand. Raises obstore's errors."""
    paths: list[str] = []
    sizes, versions = array("Q"), list[str]()
    skipped = len(folder) + 1 if folder else 0
    for page in counts.pages(client, folder):
        for found in page:
            paths.append(found["path"][skipped:])
            sizes.append(found["size"])
            versions.append(counts.version_of(found["e_tag"]))
        if len(paths) > MOST_OBJECTS:
            raise StorageError(
                f"cannot list {url}: more than {MOST_OBJECTS:,} objects are below it; give the path of one checkpoint"
            )
    return _in_order(paths, sizes, versions)


def _in_order(paths: list[str], sizes: array[int], versions: list[str]) -> Listing:
    """The listing sorted, and without the empty objects with which some programs mark folders."""
    listing = Listing(paths, sizes, versions)
    if any(one > other for one, other in pairwise(paths)):
        listing = _taken(listing, sorted(range(len(paths)), key=paths.__getitem__))
    marks = {
        place for place, size in enumerate(listing.sizes) if not size and _marks(listing, place)
    }
    if not marks:
        return listing
    return _taken(listing, [place for place in range(len(paths)) if place not in marks])


def _marks(listing: Listing, place: int) -> bool:
    """True if an empty object marks the folder itself, or a folder that has objects below it."""
    path = listing.paths[place]
    return not path or next(listing._below(path), None) is not None


def _taken(listing: Listing, places: Sequence[int]) -> Listing:
    """The objects at these places, in that order."""
    return Listing(
        [listing.paths[i] for i in places],
        array("Q", (listing.sizes[i] for i in places)),
        [listing.versions[i] for i in places],
    )
