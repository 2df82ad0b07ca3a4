"""A folder of a bucket as it was when it was listed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from reshard.storage.base import Entry, FileStatus, OpenFile, Store, Traits
from reshard.storage.buckets.file import BucketFile
from reshard.storage.buckets.listing import BYTES_PER_OBJECT, Listing
from reshard.storage.buckets.store import BucketStore, nothing_there
from reshard.storage.wrapper import StoreWrapper


class BucketView(StoreWrapper, frozen=True):
    """A folder of a bucket as it was when it was listed; implements ``base.Store``.

    What is outside of the folder is asked of the bucket.

    Attributes:
        listing: by the path from the folder; the object "" is one at the place of the folder.
    """

    store: BucketStore
    folder: str
    listing: Listing

    @property
    def traits(self) -> Traits:
        kept = BYTES_PER_OBJECT * len(self.listing.paths)
        return replace(self.store.traits, memory_bytes=kept)

    def status(self, path: str, what: str = "") -> FileStatus | None:
        below = self._below(path)
        found = None if below is None else self.listing.status(below)
        if found is None and (below is None or not below):
            return self.store.status(path, what)  # the folder may be an object
        return found

    def entries(self, folder: str) -> Sequence[Entry]:
        below = self._below(folder)
        if below is None:
            return self.store.entries(folder)
        found = self.listing.entries(below)
        if not found:
            raise nothing_there("list", self.store.text(folder))
        return found

    def files(self, folder: str) -> Iterator[str]:
        below = self._below(folder)
        return self.store.files(folder) if below is None else self.listing.files(below)

    def open(self, path: str, version: str = "", what: str = "") -> OpenFile:
        below = self._below(path)
        found = None if below is None else self.listing.status(below)
        if not below and (found is None or found.kind != "file"):
            return self.store.open(path, version, what)
        if found is None or found.kind != "file":
            raise nothing_there("read", self.store.text(path), what)
        client, version = self.store.client(path), version or found.version
        return BucketFile(client, path, self.store.text(path), version, found.nbytes, what)

    def view(self, folder: str) -> Store:
        return self if self.holds(folder) else self.store.view(folder)

    def holds(self, path: str) -> bool:
        """Whether a path is the folder, or below it."""
        return self._below(path) is not None

    def _below(self, path: str) -> str | None:
        """The path from the folder; None for what is outside."""
        path = path.rstrip("/")
        if path == self.folder:
            return ""
        begin = f"{self.folder}/" if self.folder else ""
        return path[len(begin) :] if path.startswith(begin) else None
