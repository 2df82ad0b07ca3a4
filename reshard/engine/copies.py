"""Compares the copies of slices that a checkpoint stores several times, as files of ranks do."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing

from msgspec import Struct

from reshard.checksums.crc import READ_BYTES, range_crc32c
from reshard.engine.executor import run_tasks
from reshard.engine.limits import Limits
from reshard.errors import StorageError
from reshard.formats.base import Reader
from reshard.formats.contents import Extent
from reshard.storage.location import open_file


class _Copies(Struct, frozen=True):
    """The places of one slice."""

    name: str
    extents: tuple[Extent, ...]

    @property
    def nbytes(self) -> int:
        return sum(extent.length for extent in self.extents)


class ComparedCopies(Struct, frozen=True):
    """The copies of one slice of a tensor.

    Attributes:
        nbytes: of all copies together.
        difference: why some copy is not what the first one is, or cannot be read; "" where all are equal.
    """

    name: str
    nbytes: int
    difference: str


def bytes_of_copies(reader: Reader, names: Collection[str]) -> int:
    """The bytes that ``compared_copies`` reads."""
    return sum(copies.nbytes for copies in _listed(reader, names))


def compared_copies(
    reader: Reader, names: Collection[str], limits: Limits
) -> Iterator[ComparedCopies]:
    """Compares all copies of each slice with the first one, which is also read and checked as the tensor."""
    results = run_tasks(
        _listed(reader, names),
        _compared,
        lambda _: READ_BYTES,
        limits.max_memory,
        limits.workers,
        limits.executor,
    )
    with closing(results):
        yield from results


def _listed(reader: Reader, names: Collection[str]) -> Iterator[_Copies]:
    return (_Copies(name, extents) for name in names for extents in reader.copies(name))


def _compared(copies: _Copies) -> ComparedCopies:
    return ComparedCopies(copies.name, copies.nbytes, _difference(copies))


def _difference(copies: _Copies) -> str:
    first, *others = copies.extents
    try:
        expected = _crc32c(first)
        other = next((extent for extent in others if _crc32c(extent) != expected), None)
    except StorageError as error:
        return str(error)
    if other is None:
        return ""
    return (
        f"tensor {copies.name!r}: {other.path} holds other bytes at {other.offset:,} than {first.path} at "
        f"{first.offset:,}, but both should hold the same slice; restore the damaged file from a copy"
    )


def _crc32c(extent: Extent) -> int | None:
    with closing(open_file(extent.path, extent.version)) as file:
        return range_crc32c(file.read, extent.offset, extent.length)
