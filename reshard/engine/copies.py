"""Compares the copies of slices that a checkpoint stores several times, as files of ranks do."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing

from msgspec import Struct

from reshard.checksums.file_range import READ_BYTES, range_crc32c
from reshard.engine.executor import run_tasks
from reshard.engine.limits import Limits
from reshard.errors import StorageError
from reshard.formats.base import Extent, Reader
from reshard.storage.location import open_file


class _Copies(Struct, frozen=True):
    """The places of one slice."""

    name: str
    extents: tuple[Extent, ...]


def differing_copies(
    reader: Reader, names: Collection[str], limits: Limits
) -> Iterator[tuple[str, str]]:
    """Tensors of which some copy is not what the first copy is or cannot be read, and why; the first one is read
    and checked as the tensor."""
    tasks = (_Copies(name, extents) for name in names for extents in reader.copies(name))
    results = run_tasks(
        tasks, _compared, lambda _: READ_BYTES, limits.max_memory, limits.workers, limits.executor
    )
    with closing(results):
        for name, difference in results:
            if difference:
                yield name, difference


def _compared(copies: _Copies) -> tuple[str, str]:
    first, *others = copies.extents
    try:
        expected = _crc32c(first)
        other = next((extent for extent in others if _crc32c(extent) != expected), None)
    except StorageError as error:
        return copies.name, str(error)
    if other is None:
        return copies.name, ""
    return copies.name, (
        f"tensor {copies.name!r}: {other.path} holds other bytes at {other.offset:,} than {first.path} at "
        f"{first.offset:,}, but both should hold the same slice; restore the damaged file from a copy"
    )


def _crc32c(extent: Extent) -> int | None:
    with closing(open_file(extent.path, extent.version)) as file:
        return range_crc32c(file.read, extent.offset, extent.length)
