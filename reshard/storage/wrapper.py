"""StoreWrapper: a store that passes every call on to another store; subclasses override some of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from reshard.storage.base import Entry, FileStatus, OpenFile, Pieces, Store, Traits, Writing


class StoreWrapper(Struct, frozen=True):
    """Passes every call on to ``store``; implements ``base.Store``."""

    store: Store

    @property
    def traits(self) -> Traits:
        return self.store.traits

    def status(self, path: str, what: str = "") -> FileStatus | None:
        return self.store.status(path, what)

    def entries(self, folder: str) -> Sequence[Entry]:
        return self.store.entries(folder)

    def files(self, folder: str) -> Iterator[str]:
        return self.store.files(folder)

    def open(self, path: str, version: str = "", what: str = "") -> OpenFile:
        return self.store.open(path, version, what)

    def view(self, folder: str) -> Store:
        return self.store.view(folder)

    def write(self, path: str, data: bytes | memoryview | Pieces, how: Writing = "whole") -> str:
        return self.store.write(path, data, how)

    def remove(self, path: str) -> None:
        self.store.remove(path)
