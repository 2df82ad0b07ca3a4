"""A folder of a bucket as it will be once files that are kept in memory are put."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from reshard.storage.base import Entry, FileStatus, OpenFile, Store
from reshard.storage.location import Location
from reshard.storage.wrapper import StoreWrapper


def with_files(folder: Location, files: Mapping[str, bytes]) -> Location:
    """The folder as it is now, with these files in it, by path."""
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

    def view(self, folder: str) -> Store:  # noqa: ARG002  it is one already
        return self

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
        """Nothing."""
