"""A bucket whose folders are listed once each: for looking through many folders that are not read."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import field

from reshard.errors import MissingError
from reshard.storage.base import Entry, FileStatus, Store
from reshard.storage.buckets.store import BucketStore, nothing_there
from reshard.storage.wrapper import StoreWrapper


class BucketFolders(StoreWrapper, frozen=True):
    """A bucket whose answers are remembered; implements ``base.Store``.

    The first look into a folder lists the names in it, and answers every later one: a checkpoint is recognised by a dozen
    names, which are one request instead of a dozen. It lives as long as one question does, since it notices no change.

    Attributes:
        top: what is above it is not listed, since the credentials may not reach there.
        found: the names in each folder that was listed.
    """

    store: BucketStore
    top: str
    found: dict[str, dict[str, FileStatus]] = field(default_factory=dict)

    def status(self, path: str, what: str = "") -> FileStatus | None:
        folder, _, name = path.rpartition("/")
        if not path.startswith(f"{self.top}/" if self.top else "") or not name:
            return self.store.status(path, what)
        return self._names(folder).get(name)

    def entries(self, folder: str) -> Sequence[Entry]:
        names = self._names(folder)
        if not names and folder:
            raise nothing_there("list", self.text(folder))
        return [Entry(name, found.kind == "folder") for name, found in sorted(names.items())]

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

    def remembered(self, folder: str) -> Store:  # noqa: ARG002  it remembers already
        return self
