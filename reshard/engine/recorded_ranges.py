"""Checks ranges of files whose CRC the format recorded, and finds the wrong range of a damaged tensor.

A range of one tensor alone is summed up while it is read (``checksums/tensor_digest.py``). A record of an archive that several
tensors share, or that has a tensor's elements in another order, is read unchanged, once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing

from msgspec import Struct

from reshard.checksums.crc import READ_BYTES, range_crc
from reshard.engine.decode.chunk_reader import crc_text
from reshard.engine.executor import run_tasks
from reshard.engine.limits import Limits
from reshard.errors import StorageError
from reshard.formats.base import Reader
from reshard.formats.contents import RecordedRange
from reshard.storage.location import open_file


class CheckedRange(Struct, frozen=True):
    """A range that was read.

    Attributes:
        names: the tensors with elements in it.
        is_right: true if it has the recorded CRC.
        refusal: the reason why it cannot be read; "" if it was read.
    """

    names: tuple[str, ...]
    range: RecordedRange
    is_right: bool
    refusal: str = ""

    @property
    def nbytes(self) -> int:
        return self.range.extent.length

    def damage_of(self, name: str) -> str:
        """The damage that this means for one of its tensors; "" for none."""
        if self.is_right or self.refusal:
            return self.refusal
        return crc_text(name, self.range.crc, self.range.extent.path)


def bytes_of_ranges(reader: Reader, names: Collection[str]) -> int:
    """The bytes that ``checked_ranges`` reads."""
    return sum(found.extent.length for found in _unsummed(reader, names).values())


def checked_ranges(
    reader: Reader, names: Collection[str], limits: Limits
) -> Iterator[CheckedRange]:
    """Reads the ranges of the tensors that no digest and no CRC of their own proves, each range once."""
    ranges = _unsummed(reader, names)
    holders: dict[tuple[str, int], list[str]] = defaultdict(list)
    for name in names:
        for found in _of(reader, name):
            holders[_place(found)].append(name)
    tasks = (
        CheckedRange(tuple(holders[place]), found, is_right=False)
        for place, found in ranges.items()
    )
    results = run_tasks(
        tasks, _checked, lambda _: READ_BYTES, limits.max_memory, limits.workers, limits.executor
    )
    with closing(results):
        yield from results


def unlike_text(reader: Reader, name: str) -> str:
    """The message for a tensor whose sum is not the recorded one; it names the file if the format records ranges."""
    tensor, ranges = reader.tensors[name], reader.recorded_ranges(name)
    read = (_checked(CheckedRange((name,), found, is_right=False)) for found in ranges)
    wrong = next((one.damage_of(name) for one in read if one.damage_of(name)), "")
    return wrong or (crc_text(name, tensor.crcs.crc) if tensor.crcs else "")


def _unsummed(reader: Reader, names: Collection[str]) -> Mapping[tuple[str, int], RecordedRange]:
    return {_place(found): found for name in names for found in _of(reader, name)}


def _of(reader: Reader, name: str) -> Collection[RecordedRange]:
    tensor = reader.tensors[name]
    return reader.recorded_ranges(name) if tensor.crcs is None and tensor.digest is None else ()


def _place(found: RecordedRange) -> tuple[str, int]:
    return found.extent.path, found.extent.offset


def _checked(one: CheckedRange) -> CheckedRange:
    extent, crc = one.range.extent, one.range.crc
    try:
        with closing(open_file(extent.path, extent.version)) as file:
            found = range_crc(crc, file.read, extent.offset, extent.length)
    except StorageError as error:
        return CheckedRange(one.names, one.range, is_right=False, refusal=str(error))
    return CheckedRange(one.names, one.range, is_right=found == one.range.value)
