"""Notes what is written below a root in a bucket, so that all of it can be looked for before a target is published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reshard.storage.location import Location
from reshard.storage.wrapper import StoreWrapper


class Noting(StoreWrapper, frozen=True):
    """Passes on everything; implements ``base.Store``.

    Attributes:
        put: the version of each file that was written, by its path.
    """

    put: dict[str, str]

    def write(self, path: str, data: bytes | memoryview) -> str:
        self.put[path] = self.store.write(path, data)
        return self.put[path]

    def write_pieces(self, path: str, pieces: Iterable[bytes | memoryview], nbytes: int) -> str:
        self.put[path] = self.store.write_pieces(path, pieces, nbytes)
        return self.put[path]

    def remove(self, path: str) -> None:
        self.put.pop(path, None)
        self.store.remove(path)


def noted(root: Location, put: dict[str, str]) -> Location:
    """The same root, below which everything that is written is noted; one on a disk as it is, where nothing has a version."""
    return root if root.traits.renames else Location(Noting(root.store, put), root.path)


def note(file: Location, version: str) -> None:
    """Notes a file that the store made itself, as a copy of another one."""
    if isinstance(file.store, Noting):
        file.store.put[file.path] = version


def first_changed(listed: Location, put: Mapping[str, str]) -> str | None:
    """The text of a file that is gone, or has another version than it was put in; None where all are there.

    ``listed`` is a view of their root. Stores that give no versions show only what is gone.
    """
    for path, version in put.items():
        found = listed.store.status(path)
        if found is None or (version and found.version != version):
            return listed.traits.text(path)
    return None
