"""A store that notes what is written through it, so that all of it can be looked for before a target is published."""

from __future__ import annotations

from collections.abc import Iterable

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
