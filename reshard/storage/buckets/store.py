"""A bucket as a store: objects are files, and prefixes that end with a slash are folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from msgspec import Struct

from reshard.errors import MissingError
from reshard.storage.base import Entry, FileStatus, OpenFile, Pieces, Store, Traits, WriteMode
from reshard.storage.buckets import counts, objects
from reshard.storage.buckets.clients import client_for
from reshard.storage.buckets.clouds import CLOUDS, Scheme, format_url
from reshard.storage.buckets.counts import version_of
from reshard.storage.buckets.errors import NoConditionsError, bucket_errors, whole_listing
from reshard.storage.buckets.file import RANGE_BYTES, BucketFile
from reshard.storage.buckets.listing import Listing, list_objects

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
