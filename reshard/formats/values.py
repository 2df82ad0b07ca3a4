"""Values: locates the values of a key-value store in files. Two storage kinds implement it.

Orbax keeps arrays under keys such as ``params.kernel/.zarray`` and ``params.kernel/0.1``, either as
plain files of those names (``orbax/plain_files``) or in an OCDBT database (``ocdbt/index``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Protocol

from reshard.errors import CorruptError
from reshard.formats.contents import Extent
from reshard.storage.location import open_file


class Values(Protocol):
    """Look-up of the extent of each value; safe from any thread."""

    def find(self, key: str, what: str) -> Extent | None:
        """The value's extent within its file, or None if there is no such value.

        Raises CorruptError, naming ``what``, if the extent reaches beyond the end of its file.
        """
        ...

    def below(self, prefix: str) -> Iterator[str]:
        """What follows ``prefix``, which is "" or ends with a slash, in all keys. Nothing is looked up key by key."""
        ...

    @property
    def metadata_bytes(self) -> int:
        """Estimate of the memory of the look-up."""
        ...


def read_extents(extents: Sequence[Extent]) -> dict[Extent, bytes]:
    """The bytes of values in a bucket, many at once; those that cannot be read are left out."""
    from reshard.storage.buckets.read_many import ByteRange, read_many

    parts = {
        e: ByteRange(e.path, e.version, e.offset, e.length) for e in extents if e.inline is None
    }
    found = read_many(parts.values())
    return {extent: found[part] for extent, part in parts.items() if part in found}


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
