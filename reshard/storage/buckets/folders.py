"""A bucket that lists each folder once: for the repeated questions of one call."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from msgspec import field

from reshard.errors import MissingError
from reshard.storage.base import Entry, FileStatus, Store, StoreWrapper
from reshard.storage.buckets.listing import Listing
from reshard.storage.buckets.store import BucketStore, nothing_there
from reshard.storage.buckets.view import BucketView


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
