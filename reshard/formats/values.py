"""Values: locates the values of a key-value store in files. Two storage kinds implement it.

Orbax keeps arrays under keys such as ``params.kernel/.zarray`` and ``params.kernel/0.1``, either as
plain files of those names (``PlainFiles``) or in an OCDBT database (``ocdbt/index``).

In plain files the key is the path, which is looked up on demand. If a checkpoint omits chunks that have only the fill value, a
missing file means that value. A file that is removed during the read must not mean it. So such a checkpoint is listed when it
is opened, and every listed file must still exist later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Protocol

from reshard.errors import CorruptError, StorageError
from reshard.formats.contents import Extent
from reshard.storage.base import Store
from reshard.storage.location import Location, open_file


class Values(Protocol):
    """Look-up of the extent of each value; safe from any thread."""

    def find(self, key: str, what: str) -> Extent | None:
        """The value's extent within its file, or None if there is no such value.

        Raises CorruptError, naming ``what``, if the extent reaches beyond the end of its file.
        """
        ...

    def below(self, prefix: str) -> Iterator[str]:
        """The rest of each key behind ``prefix``, which is "" or ends with a slash. Nothing is looked up key by key."""
        ...

    @property
    def metadata_bytes(self) -> int:
        """Estimate of the memory of the look-up."""
        ...


def read_extents(store: Store, extents: Iterable[Extent]) -> dict[Extent, bytes]:
    """The bytes of values in a bucket, many at once; those that cannot be read are left out."""
    from reshard.storage.calls import ByteRange, read_many

    of_parts: dict[ByteRange, Extent] = {}

    def parts() -> Iterator[ByteRange]:
        for one in extents:
            if one.inline is None:
                part = ByteRange(one.path, one.version, one.offset, one.length)
                of_parts[part] = one
                yield part

    return {of_parts[part]: data for part, data in read_many(store, parts()).items()}


def read_extent(extent: Extent, what: str, start: int = 0, length: int | None = None) -> bytes:
    """Bytes of a value: ``length`` of them from ``start``, or all.

    Raises StorageError if the file cannot be read, CorruptError, naming ``what``, if it ends too early.
    """
    size = extent.length - start if length is None else length
    if extent.inline is not None:
        return extent.inline[start : start + size]
    with closing(open_file(extent.path, extent.version, what)) as file:
        data = file.read(extent.offset + start, size)
    if len(data) != size:
        raise CorruptError(
            f"{what}: truncated: expected {size:,} bytes from offset {extent.offset + start:,} of "
            f"{extent.path}, found {len(data):,}; restore the file from a copy"
        )
    return data


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
        """The same files; those that are present now are remembered."""
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
        text = str(Location(self._store, path))
        if found.kind != "file":
            raise CorruptError(f"{what}: {text} should be a plain file, but is not")
        return Extent(text, 0, found.nbytes, version=found.version)

    def _refuse_vanished(self, key: str, what: str) -> None:
        if key in self._listed:
            raise StorageError(
                f"{what}: {self._folder / key} was there when the checkpoint was opened and is gone now; "
                "keep the checkpoint until it is read, then run again"
            )
