"""A bucket whose folders are listed once each: for looking through many folders that are not read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from reshard.errors import MissingError
from reshard.storage.base import Entry, FileStatus, OpenFile, Store
from reshard.storage.buckets.store import BucketStore, nothing_there


class BucketFolders:
    """A bucket whose answers are remembered; implements ``base.Store``.

    The first look into a folder lists the names in it, and answers every later one: a checkpoint is recognised by a dozen
    names, which are one request instead of a dozen. It lives as long as one question does, since it notices no change.

    Args:
        top: what is above it is not listed, since the credentials may not reach there.
    """

    def __init__(self, store: BucketStore, top: str) -> None:
        self._store, self._top = store, top
        self._found: dict[str, dict[str, FileStatus]] = {}

    @property
    def range_bytes(self) -> int:
        return self._store.range_bytes

    @property
    def renames(self) -> bool:
        return False

    @property
    def memory_bytes(self) -> int:
        return 0

    def text(self, path: str) -> str:
        return self._store.text(path)

    def status(self, path: str, what: str = "") -> FileStatus | None:
        folder, _, name = path.rpartition("/")
        if not path.startswith(f"{self._top}/" if self._top else "") or not name:
            return self._store.status(path, what)
        return self._names(folder).get(name)

    def entries(self, folder: str) -> Sequence[Entry]:
        names = self._names(folder)
        if not names and folder:
            raise nothing_there("list", self.text(folder))
        return [Entry(name, found.kind == "folder") for name, found in sorted(names.items())]

    def _names(self, folder: str) -> dict[str, FileStatus]:
        known = self._found.get(folder)
        if known is None:
            known = self._found[folder] = self._listed(folder)
        return known

    def _listed(self, folder: str) -> dict[str, FileStatus]:
        try:
            return self._store.names(folder)
        except MissingError as error:
            if error.fault:
                raise
            return {}

    def files(self, folder: str) -> Iterator[str]:
        return self._store.files(folder)

    def open(self, path: str, version: str = "", what: str = "") -> OpenFile:
        return self._store.open(path, version, what)

    def view(self, folder: str) -> Store:
        return self._store.view(folder)

    def remembered(self, folder: str) -> Store:  # noqa: ARG002  it remembers already
        return self

    def tensorstore_spec(self, folder: str) -> dict[str, Any]:
        return self._store.tensorstore_spec(folder)

    def state(self, path: str, but: frozenset[str] = frozenset()) -> Iterator[str]:
        return self._store.state(path, but)
