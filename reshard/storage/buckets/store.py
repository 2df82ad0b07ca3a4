"""A bucket as a store: objects are files, and prefixes that end with a slash are folders. Also its listings, and copies within it."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec import Struct

from reshard.errors import MissingError, SourceChangedError, StorageError
from reshard.storage.base import Entry, FileStatus, OpenFile, Pieces, Store, Traits, WriteMode
from reshard.storage.buckets import counts, objects
from reshard.storage.buckets.clients import client_for
from reshard.storage.buckets.clouds import CLOUDS, Scheme, format_url, parse_url
from reshard.storage.buckets.counts import version_of
from reshard.storage.buckets.errors import NoConditionsError, bucket_errors, whole_listing
from reshard.storage.buckets.file import RANGE_BYTES, BucketFile
from reshard.storage.location import Location

if TYPE_CHECKING:
    from obstore.store import ObjectStore


_WITHOUT_CONDITIONS: set[tuple[Scheme, str]] = set()
"""Buckets that have refused a condition; they would refuse it again."""


class BucketStore(Struct, frozen=True):
    """A bucket; implements ``base.Store``. It has no secrets and can be pickled: each process makes its own client."""

    scheme: Scheme
    bucket: str

    @property
    def traits(self) -> Traits:
        return _traits(self.scheme, self.bucket)

    def text(self, path: str) -> str:
        """The URL of a path."""
        return format_url(self.scheme, self.bucket, path)

    def client(self, path: str, *, retries: bool = True) -> ObjectStore:
        """obstore's client, with the settings for a path."""
        return client_for(self.scheme, self.bucket, path, retries=retries)

    def status(self, path: str, what: str = "") -> FileStatus | None:
        """The status of a path: one request for an object, one more for a folder or nothing."""
        if path and (found := self.object_status(path, what)) is not None:
            return found
        client = self.client(path)
        with bucket_errors("look at", self.text(path), what):
            page = whole_listing(lambda: next(counts.pages(client, path, 1), None))
        return FileStatus("folder") if page or not path else None

    def object_status(self, path: str, what: str = "") -> FileStatus | None:
        """The object at a path, in one request; None if there is none."""
        client = self.client(path)
        with bucket_errors("look at", self.text(path), what):
            try:
                found = counts.head(client, path)
            except FileNotFoundError:
                return None
        return FileStatus("file", found["size"], version_of(found["e_tag"]))

    def entries(self, folder: str) -> Sequence[Entry]:
        names = self.names(folder)
        if not names and folder:
            raise nothing_there("list", self.text(folder))
        return [Entry(name, found.kind == "folder") for name, found in sorted(names.items())]

    def names(self, folder: str) -> dict[str, FileStatus]:
        """The status of each name in a folder, in one request for each thousand names."""
        client = self.client(folder)
        with bucket_errors("list", self.text(folder)):
            found = whole_listing(lambda: counts.names(client, folder))
        skipped = len(folder) + 1 if folder else 0
        names = {
            one["path"][skipped:]: FileStatus("file", one["size"], version_of(one["e_tag"]))
            for one in found["objects"]
        }
        names |= {prefix[skipped:]: FileStatus("folder") for prefix in found["common_prefixes"]}
        names.pop("", None)  # an empty object that marks the folder itself
        return names

    def files(self, folder: str) -> Iterator[str]:
        return self.listing(folder).files("")

    def open(self, path: str, version: str = "", what: str = "") -> OpenFile:
        return BucketFile(self.client(path), path, self.text(path), version, what=what)

    def view(self, folder: str) -> Store:
        from reshard.storage.buckets.views import BucketView

        return BucketView(self, folder, self.listing(folder))

    def write(self, path: str, data: bytes | memoryview | Pieces, how: WriteMode = "whole") -> str:
        if isinstance(data, Pieces):
            if data.nbytes > objects.WHOLE_BYTES:
                return objects.put_parts(self, path, data.pieces, objects.part_bytes(data.nbytes))
            data = b"".join(data.pieces)
        if how == "replace":
            return objects.put(self, path, data)
        if how == "new":
            return objects.put_new(self, path, data)
        return self._write_whole(path, data)

    def _write_whole(self, path: str, data: bytes | memoryview) -> str:
        if self._place not in _WITHOUT_CONDITIONS:
            try:
                return objects.put_new(self, path, data)
            except (
                NoConditionsError
            ):  # a run that writes here has accepted it before the first object
                _WITHOUT_CONDITIONS.add(self._place)
        return objects.put(self, path, data)

    @property
    def _place(self) -> tuple[Scheme, str]:
        return self.scheme, self.bucket

    def remove(self, path: str) -> None:
        objects.delete(self, [path])

    def listing(self, folder: str) -> Listing:
        """Every object below a folder."""
        client = self.client(folder)
        with bucket_errors("list", self.text(folder)):
            return whole_listing(lambda: list_objects(client, folder, self.text(folder)))


@cache
def _traits(scheme: Scheme, bucket: str) -> Traits:
    return Traits(
        format_url(scheme, bucket, ""),
        RANGE_BYTES,
        renames=False,
        in_place=False,
        has_folders=False,
        has_versions=True,
        has_free_bytes=False,
        requests=CLOUDS[scheme].requests,
    )


def nothing_there(action: str, url: str, what: str = "") -> MissingError:
    """The error, to be raised, for a folder or an object that the bucket does not have."""
    begin = f"{what}: " if what else ""
    return MissingError(
        f"{begin}cannot {action} {url}: nothing is there; check bucket and path: names must be given in full, and large "
        "and small letters differ"
    )


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


LEAST_BYTES = 4 << 20
"""Smaller objects are read and written in fewer requests than a copy takes."""

GREATEST_BYTES = 5 << 30
"""The largest object that S3 copies in one request."""

_MD5 = re.compile(r'"([0-9a-f]{32})"')

_UNPROVEN: set[tuple[Scheme, str]] = set()
"""Buckets whose ETags do not depend on the content alone, such as those with keys of the customer."""


def is_worth_it(source: str, target: str, nbytes: int) -> bool:
    """True if two URLs are in one bucket with provable copies, and an object is large enough."""
    place, other = parse_url(source)[:2], parse_url(target)[:2]
    is_one = place == other and CLOUDS[place[0]].tag_of_copy is not None and place not in _UNPROVEN
    return is_one and LEAST_BYTES <= nbytes <= GREATEST_BYTES


def is_provable(source: str, version: str) -> bool:
    """True if the ETag of an object shows that a copy of it has the same bytes."""
    return bool(_tag_of_copy(parse_url(source)[0], version))


def copy_within(source: Location, status: FileStatus, target: Location) -> str:
    """Copies an object in the version of ``status`` to a free path; returns the version of the copy, or "" if nothing was copied.

    The copy is proven by its ETag: the MD5 of the content, or on S3 the MD5 of an upload of one part, since only such copies
    obey a condition there. A copy that cannot be proven is removed; the caller then copies the bytes and compares them.
    """
    scheme, bucket, path = parse_url(str(source))
    store, to = BucketStore(scheme, bucket), target.path
    expected = _tag_of_copy(scheme, status.version)
    if not expected or store.client(path) is not store.client(to):
        return ""  # or each has settings of its own
    if not _copy(store, path, to):
        return ""
    found = store.status(to)
    if found is not None and (found.version, found.nbytes) == (expected, status.nbytes):
        return found.version
    objects.delete(store, [to])
    now = store.status(path)
    if now is None or now.version != status.version:
        raise SourceChangedError(
            f"{source} changed while it was copied: its ETag is another one now; run again once nobody writes to it"
        )
    _UNPROVEN.add((scheme, bucket))
    return ""


def _tag_of_copy(scheme: Scheme, version: str) -> str:
    """The ETag of an object with the content that an ETag proves; "" if it proves none."""
    found, tag_of_copy = _MD5.fullmatch(version), CLOUDS[scheme].tag_of_copy
    return "" if found is None or tag_of_copy is None else tag_of_copy(found[1])


def _copy(store: BucketStore, path: str, target: str) -> bool:
    """True if the store copied it. It does not if an object is there, or if it knows no such copy."""
    client = store.client(target)
    from obstore.exceptions import AlreadyExistsError, NotSupportedError

    with bucket_errors("copy", store.text(path)):
        try:
            counts.copy(client, path, target)
        except (AlreadyExistsError, NotSupportedError, NotImplementedError):
            return False
    return True
