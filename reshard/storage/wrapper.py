"""StoreWrapper: a store that passes every call on to another store; subclasses override some of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from reshard.storage.base import Entry, FileStatus, OpenFile, Store, Traits


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

    def remembered(self, folder: str) -> Store:
        return self.store.remembered(folder)

    def write(self, path: str, data: bytes | memoryview) -> str:
        return self.store.write(path, data)

    def write_pieces(self, path: str, pieces: Iterable[bytes | memoryview], nbytes: int) -> str:
        return self.store.write_pieces(path, pieces, nbytes)

    def write_new(self, path: str, data: bytes) -> None:
        self.store.write_new(path, data)

    def replace(self, path: str, data: bytes) -> None:
        self.store.replace(path, data)

    def remove(self, path: str) -> None:
        self.store.remove(path)

    def make_folder(self, path: str) -> None:
        self.store.make_folder(path)

    def free_bytes(self, path: str) -> int | None:
        return self.store.free_bytes(path)

    def state(self, path: str, but: frozenset[str] = frozenset()) -> Iterator[str]:
        return self.store.state(path, but)
