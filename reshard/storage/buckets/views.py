"""Folders of a bucket that are listed once: a view in the state of its listing, and answers kept for the questions of one call."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from reshard.errors import MissingError
from reshard.storage.base import Entry, FileStatus, OpenFile, Store, StoreWrapper, Traits
from reshard.storage.buckets.file import BucketFile
from reshard.storage.buckets.store import BYTES_PER_OBJECT, BucketStore, Listing, nothing_there
from reshard.storage.location import Location


class BucketView(StoreWrapper, frozen=True):
    """A folder of a bucket in the state of its listing; implements ``base.Store``.

    Questions about paths outside of the folder go to the bucket.

    Attributes:
        listing: by the path from the folder; the object "" is one at the path of the folder itself.
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
        """True if a path is the folder, or below it."""
        return self._below(path) is not None

    def _below(self, path: str) -> str | None:
        """The path from the folder; None for one outside of it."""
        path = path.rstrip("/")
        if path == self.folder:
            return ""
        begin = f"{self.folder}/" if self.folder else ""
        return path[len(begin) :] if path.startswith(begin) else None


def with_files(folder: Location, files: Mapping[str, bytes]) -> Location:
    """The folder in its current state plus these files, by path."""
    view = folder.view()
    below = {f"{folder.path}/{name}": data for name, data in files.items()}
    return Location(_PendingFiles(view.store, below), folder.path)


class _PendingFiles(StoreWrapper, frozen=True):
    """A view with more files; implements ``base.Store`` for reading."""

    below: Mapping[str, bytes]

    def status(self, path: str, what: str = "") -> FileStatus | None:
        data = self.below.get(path)
        return self.store.status(path, what) if data is None else FileStatus("file", len(data))

    def entries(self, folder: str) -> Sequence[Entry]:
        names = {entry.name: entry for entry in self.store.entries(folder)}
        for name in self._names(folder):
            first, slash, _ = name.partition("/")
            names.setdefault(first, Entry(first, bool(slash)))
        return sorted(names.values(), key=lambda entry: entry.name)

    def files(self, folder: str) -> Iterator[str]:
        yield from self.store.files(folder)
        yield from self._names(folder)

    def open(self, path: str, version: str = "", what: str = "") -> OpenFile:
        data = self.below.get(path)
        return self.store.open(path, version, what) if data is None else _BytesFile(data)

    def view(self, _folder: str, /) -> Store:
        return self  # it is one already

    def _names(self, folder: str) -> Iterator[str]:
        begin = f"{folder}/" if folder else ""
        return (path[len(begin) :] for path in self.below if path.startswith(begin))


class _BytesFile(Struct, frozen=True):
    """A file in memory; implements ``base.OpenFile``."""

    data: bytes

    def fill(self, offset: int, out: memoryview) -> int:
        found = self.data[offset : offset + len(out)]
        out[: len(found)] = found
        return len(found)

    def read(self, offset: int, nbytes: int) -> bytes:
        return self.data[offset : offset + nbytes]

    def close(self) -> None:
        """Does nothing."""


def remembered(store: Store, folder: str) -> Store:
    """A store in a bucket for looking through many folders below ``folder``; a store that remembers them already is returned."""
    if isinstance(store, BucketView) and not store.holds(folder):
        store = store.store
    return BucketFolders(store, folder) if isinstance(store, BucketStore) else store


class BucketFolders(StoreWrapper, frozen=True):
    """A bucket with remembered answers; implements ``base.Store``.

    The first question about a folder lists the names in it, and answers every later one: a checkpoint is recognised by a dozen
    names, which take one request instead of a dozen. A view lists all objects below it, once. Use it for a single question, or
    for one call that reads a checkpoint, since it notices no change.

    A name in ``top`` is looked up by itself before its folder is listed: the first such name usually decides the
    format, and a checkpoint of 10,000 tensors may have as many folders.

    Attributes:
        top: folders above it are not listed, since the credentials may not reach there.
        found: the names in each folder that was listed.
        objects: the status of each path that was looked up by itself.
        views: by their folder.
    """

    store: BucketStore
    top: str
    found: dict[str, dict[str, FileStatus]] = field(default_factory=dict)
    objects: dict[str, FileStatus | None] = field(default_factory=dict)
    views: dict[str, BucketView] = field(default_factory=dict)

    def status(self, path: str, what: str = "") -> FileStatus | None:
        if path == self.top:
            return self._status_of_top(what)
        folder, _, name = path.rpartition("/")
        if not path.startswith(f"{self.top}/" if self.top else "") or not name:
            return self.store.status(path, what)
        if folder == self.top and folder not in self.found:
            found = self._object(path, what)
            if found is not None:
                return found
        return self._names(folder).get(name)

    def entries(self, folder: str) -> Sequence[Entry]:
        names = self._names(folder)
        if not names and folder:
            raise nothing_there("list", self.store.text(folder))
        return [Entry(name, found.kind == "folder") for name, found in sorted(names.items())]

    def view(self, folder: str) -> Store:
        for view in list(self.views.values()):
            if view.holds(folder):
                return view
        made = self.views[folder] = BucketView(self.store, folder, self._listing(folder))
        return made

    def _status_of_top(self, what: str) -> FileStatus | None:
        is_known = any(found for path, found in self.objects.items() if path != self.top)
        if not self.top or is_known or self._names(self.top):
            return FileStatus("folder")
        return self._object(self.top, what)

    def _object(self, path: str, what: str) -> FileStatus | None:
        if path not in self.objects:
            self.objects[path] = self.store.object_status(path, what)
        return self.objects[path]

    def _names(self, folder: str) -> dict[str, FileStatus]:
        known = self.found.get(folder)
        if known is None:
            known = self.found[folder] = self._listed(folder)
        return known

    def _listed(self, folder: str) -> dict[str, FileStatus]:
        try:
            return self.store.names(folder)
        except MissingError as error:
            if error.fault:
                raise
            return {}

    def _listing(self, folder: str) -> Listing:
        """All objects below a folder; the listed names are all of them if none is a folder."""
        names = self.found.get(folder)
        if names is None or any(one.kind == "folder" for one in names.values()):
            return self.store.listing(folder)
        if not names and (one := self.status(folder)) is not None:
            names = {"": one}
        paths = sorted(names)
        sizes = array("Q", (names[path].nbytes for path in paths))
        return Listing(paths, sizes, [names[path].version for path in paths])
