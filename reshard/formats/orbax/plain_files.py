"""Values in plain files: the key is the path, which is looked up on demand.

If a checkpoint omits chunks that have only the fill value, a missing file means that value. A file that is removed
during the read must not mean it. So such a checkpoint is listed when it is opened, and every listed file must still
exist later.
"""

from __future__ import annotations

from collections.abc import Iterator

from reshard.errors import CorruptError, StorageError
from reshard.formats.contents import Extent
from reshard.storage.location import Location

_KEY_BYTES = 150
"""Memory of a listed key, besides its text (measured)."""


class PlainFiles:
    """The files below one item's folder; with ``is_listed`` the present files are remembered."""

    def __init__(self, folder: Location, *, is_listed: bool = False) -> None:
        self._folder = folder
        self._is_listed = is_listed
        self._store = folder.store
        self._root = f"{folder.path}/"
        self._listed = frozenset(folder.files()) if is_listed else frozenset()

    def listed(self) -> PlainFiles:
        """The same files, of which those that are present now are remembered."""
        return self if self._is_listed else PlainFiles(self._folder, is_listed=True)

    def below(self, prefix: str) -> Iterator[str]:
        """The path from the folder ``prefix`` of every file below it, in one listing of that folder."""
        return (self._folder / prefix.removesuffix("/")).files()

    @property
    def metadata_bytes(self) -> int:
        return sum(_KEY_BYTES + len(key) for key in self._listed)

    def find(self, key: str, what: str) -> Extent | None:
        """The whole file; one look-up per call. Names that lead elsewhere were refused before."""
        path = self._root + key
        found = self._store.status(path, what)
        if found is None:
            self._refuse_vanished(key, what)
            return None
        text = self._store.traits.text(path)
        if found.kind != "file":
            raise CorruptError(f"{what}: {text} should be a plain file, but is not")
        return Extent(text, 0, found.nbytes, version=found.version)

    def _refuse_vanished(self, key: str, what: str) -> None:
        if key in self._listed:
            raise StorageError(
                f"{what}: {self._folder / key} was there when the checkpoint was opened and is gone now; "
                "keep the checkpoint until it is read, then run again"
            )
