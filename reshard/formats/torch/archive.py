"""The zip archive that ``torch.save`` makes of one object: the place of each record's bytes.

::

    archive/data.pkl        a pickle of the object; a number names the content of a tensor's storage
    archive/byteorder       "little" or "big"
    archive/data/0, …       the bytes of each storage, uncompressed

Records are stored as they are. The sizes in local headers are left out mostly (flag 8), so that the central directory tells
them; a ZIP64 end record comes before the end record (PKWARE's APPNOTE.TXT, 4.3). The first part of a name is the name of the file that
torch wrote to, and may be anything.

The structures of a zip archive, as ``torch.save`` uses them, as far as they are read and written (PKWARE's APPNOTE.TXT, 4.3).

RecordCrcs: the CRC-32s that archives of torch have of the records with a tensor's elements.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from reshard.checksums.crc import CRC32
from reshard.checksums.tensor_digest import PieceCrcs
from reshard.errors import CorruptError, FormatError
from reshard.formats.contents import Extent, RawPiece, RecordedRange
from reshard.formats.limits import (
    MAX_ARCHIVE_RECORDS,
    MAX_DIRECTORY_BYTES,
    MAX_FILE_DIRECTORY_BYTES,
    MAX_FILE_RECORDS,
    MAX_ITEM_PICKLE_BYTES,
    MAX_STATE_PICKLE_BYTES,
)
from reshard.formats.loose_pieces import is_reordered
from reshard.geometry.grid import Box

LOCAL_MAGIC, DESCRIPTOR_MAGIC, CENTRAL_MAGIC = b"PK\3\4", b"PK\7\b", b"PK\1\2"
END64_MAGIC, LOCATOR_MAGIC, END_MAGIC = b"PK\6\6", b"PK\6\7", b"PK\5\6"

LOCAL = struct.Struct("<4s5H3I2H")
"""Before a record's data: magic, version, flags, method, time, date, CRC-32, two sizes, lengths of the name and of extra fields."""

DESCRIPTOR, DESCRIPTOR64 = struct.Struct("<4s3I"), struct.Struct("<4sI2Q")
"""Behind the data, where flag 8 says so: magic, CRC-32, two sizes."""

CENTRAL = struct.Struct("<4s6H3I5H2I")
"""In the directory: as LOCAL with the writer's version first, then length of the comment, disk, two attributes, offset of the header."""

END64 = struct.Struct("<4sQ2H2I4Q")
"""Magic, its own size from there on, two versions, two disks, two counts of records, size and offset of the directory."""

LOCATOR = struct.Struct("<4sIQI")
"""Magic, disk, offset of END64, number of disks."""

END = struct.Struct("<4s4H2IH")
"""Magic, two disks, two counts of records, size and offset of the directory, length of the comment."""

EXTRA = struct.Struct("<2H")
"""Before an extra field: its kind and its length."""

ENCRYPTED, SIZES_FOLLOW = 1, 8
"""Flags: the data is encrypted; CRC-32 and sizes are in a descriptor."""

ZIP64 = 1
"""The kind of the extra field for numbers that 4 bytes cannot hold."""

UNSET = 0xFFFFFFFF
"""The value of a field of 4 bytes whose number is in ZIP64's."""


def crcs_of_number(element: bytes) -> PieceCrcs:
    """The CRC of a number in a pickle whose own CRC-32 was compared."""
    return PieceCrcs.of([Box.full(())], [CRC32.of(element)], len(element), CRC32)


class RecordCrcs(Struct, frozen=True):
    """The pieces of a tensor that fill one record each, and the CRC-32 of each record; none for a tensor without elements."""

    pieces: tuple[RawPiece, ...]
    values: tuple[int, ...]
    itemsize: int

    @classmethod
    def of(
        cls, pieces: Sequence[RawPiece], values: Sequence[int], itemsize: int
    ) -> RecordCrcs | None:
        """The CRCs of all pieces of a tensor; None if one is 0, which torch writes when it computes none."""
        return cls(tuple(pieces), tuple(values), itemsize) if all(values) else None

    def summed(self) -> PieceCrcs | None:
        """The CRCs that boxes of the tensor add up to; None where a piece has its elements in another order."""
        if any(map(is_reordered, self.pieces)):
            return None
        boxes = [piece.box for piece in self.pieces]
        return PieceCrcs.of(boxes, self.values, self.itemsize, CRC32)

    def ranges(self) -> list[RecordedRange]:
        """The range of each record, and its CRC-32."""
        return [
            RecordedRange(self._extent(piece), CRC32, value)
            for piece, value in zip(self.pieces, self.values, strict=True)
        ]

    def _extent(self, piece: RawPiece) -> Extent:
        nbytes = piece.box.size * self.itemsize
        return Extent(piece.path, piece.offset, nbytes, version=piece.version)


PICKLE = "data.pkl"
"""The record with the pickle."""

LOCAL_BYTES = LOCAL.size
"""Of the header of a record, without its name."""

_OF_SCRIPT = ("code/", "constants.pkl")
"""Records that TorchScript alone has."""

_ReadBytes = Callable[[int, int], bytes]
"""The bytes of an archive from an offset, all of them; raises CorruptError where there are fewer."""


class Most(Struct, frozen=True):
    """The limits of an archive that is read."""

    records: int
    directory_bytes: int
    pickle_bytes: int


OF_ITEM = Most(MAX_ARCHIVE_RECORDS, MAX_DIRECTORY_BYTES, MAX_ITEM_PICKLE_BYTES)
"""An archive of one tensor or value."""

OF_STATE = Most(MAX_FILE_RECORDS, MAX_FILE_DIRECTORY_BYTES, MAX_STATE_PICKLE_BYTES)
"""An archive of a whole state dict."""


class ArchiveRecord(Struct, frozen=True):
    """A record of an archive.

    Attributes:
        header: offset of its local header.
        limit: offset that its data may not reach beyond: the next record, or the directory.
        flags: of the zip format.
        crc: CRC-32 of the data; 0 where torch was told not to compute it.
    """

    name: str
    header: int
    nbytes: int
    limit: int
    flags: int
    crc: int


class Archive(Struct, frozen=True):
    """The records of an archive by name, without the part that all names begin with."""

    records: dict[str, ArchiveRecord]
    read: _ReadBytes
    where: str
    most: Most = OF_ITEM

    def start(self, name: str) -> tuple[ArchiveRecord, int]:
        """A record, and the offset of its first byte in the archive. Raises CorruptError where it is not as its headers say."""
        record = self.records.get(name)
        if record is None:
            raise CorruptError(
                f"{self.where} has no record {name[:200]!r}; expected an archive of torch.save, so restore the file from a copy"
            )
        fields = LOCAL.unpack(self.read(record.header, LOCAL.size))
        magic, flags, method, stored, size = fields[0], fields[2], fields[3], fields[7], fields[8]
        start = record.header + LOCAL.size + fields[9] + fields[10]
        is_told = not flags & SIZES_FOLLOW and UNSET not in (stored, size)
        if (
            magic != LOCAL_MAGIC
            or method
            or flags != record.flags
            or (is_told and (stored, size) != (record.nbytes, record.nbytes))
            or start + record.nbytes > record.limit
        ):
            raise _lies(
                self.where, f"the headers of its record {name[:200]!r} contradict each other"
            )
        return record, start

    def small(self, name: str) -> bytes:
        """The bytes of a small record. Raises CorruptError where they are damaged, FormatError where they are too many."""
        record, start = self.start(name)
        if record.nbytes > self.most.pickle_bytes:
            raise FormatError(
                f"{self.where} has a record {name[:200]!r} of {record.nbytes:,} bytes; at most {self.most.pickle_bytes:,} are read"
            )
        data = self.read(start, record.nbytes)
        if record.crc and zlib.crc32(data) != record.crc:
            raise CorruptError(
                f"{self.where}: the record {name!r} has another CRC-32 than its header says; restore the file from a copy"
            )
        return data

    def digest(self) -> str:
        """A checksum of the pickle and the storages, from those that are recorded; "" where none is."""
        names = [name for name in self.records if name == PICKLE or name.startswith("data/")]
        crcs = [self.records[name].crc for name in sorted(names)]
        return f"{zlib.crc32(repr(crcs).encode()):08x}" if any(crcs) else ""

    def refuse_big_endian(self) -> None:
        """Raises FormatError for an archive that a big-endian machine wrote. Older versions of torch do not say."""
        if "byteorder" in self.records and self.small("byteorder") != b"little":
            raise FormatError(
                f"{self.where} holds big-endian numbers; load it with torch, and save it on a little-endian machine"
            )


def open_archive(read: _ReadBytes, nbytes: int, where: str, most: Most = OF_ITEM) -> Archive:
    """The archive in ``nbytes`` bytes, all of them.

    Raises CorruptError if the bytes are not an archive or its parts contradict each other, FormatError for compressed records.
    """
    if nbytes < END.size or read(0, 4) != LOCAL_MAGIC:
        raise _lies(where, "it does not begin as an archive does")
    start, size, count = _directory(read, nbytes, where, most)
    records = list(_entries(read(start, size), count, start, where))
    return Archive(_named(records, where), read, where, most)


def _directory(read: _ReadBytes, nbytes: int, where: str, most: Most) -> tuple[int, int, int]:
    """Offset and size of the central directory, and the number of its records."""
    end_at = nbytes - END.size
    magic, *_, count, size, start, comment = END.unpack(read(end_at, END.size))
    if magic != END_MAGIC or comment:
        raise _lies(where, "it does not end as an archive does")
    locator_at = end_at - LOCATOR.size
    locator = LOCATOR.unpack(read(locator_at, LOCATOR.size)) if locator_at > 0 else (b"",)
    if locator[0] == LOCATOR_MAGIC:
        end_at = locator[2]
        if end_at + END64.size > locator_at:
            raise _lies(where, "its ZIP64 end record is not before its locator")
        found = END64.unpack(read(end_at, END64.size))
        if found[0] != END64_MAGIC:
            raise _lies(where, "its ZIP64 end record is not where its locator says")
        count, size, start = found[7:]
    if count > most.records or size > most.directory_bytes:
        raise FormatError(
            f"{where} has {count:,} records in a directory of {size:,} bytes; at most {most.records:,} records and "
            f"{most.directory_bytes:,} bytes are read"
        )
    if start + size > end_at:
        raise _lies(where, "its directory reaches beyond its end record")
    return start, size, count


def _entries(data: bytes, count: int, limit: int, where: str) -> Iterator[ArchiveRecord]:
    """The records of a central directory, by offset; ``limit``: its own offset."""
    found, at = list[ArchiveRecord](), 0
    for _ in range(count):
        record, at = _entry(data, at, limit, where)
        found.append(record)
    if at != len(data):
        raise _lies(where, f"its directory has {len(data):,} bytes, but its records take {at:,}")
    found.sort(key=lambda record: record.header)
    limits = [*(record.header for record in found[1:]), limit]
    for record, end in zip(found, limits, strict=bool(found)):
        if record.header + LOCAL.size + record.nbytes > end:
            raise _lies(where, f"its record {record.name[:200]!r} reaches into what follows it")
        yield replace(record, limit=end)


def _entry(data: bytes, at: int, limit: int, where: str) -> tuple[ArchiveRecord, int]:
    """The record that a directory has at an offset, and the offset behind it."""
    if at + CENTRAL.size > len(data):
        raise _lies(where, "its directory is cut short")
    fields = CENTRAL.unpack_from(data, at)
    magic, flags, method, crc, stored, nbytes = (fields[i] for i in (0, 3, 4, 7, 8, 9))
    name_bytes, extra_bytes, comment_bytes, header = (fields[i] for i in (10, 11, 12, 16))
    name_at = at + CENTRAL.size
    extra_at = name_at + name_bytes
    end = extra_at + extra_bytes + comment_bytes
    if magic != CENTRAL_MAGIC or end > len(data):
        raise _lies(where, "its directory is cut short")
    name = data[name_at:extra_at].decode("utf-8", "replace")
    extra = data[extra_at : extra_at + extra_bytes]
    nbytes, stored, header = _full_sizes(extra, (nbytes, stored, header), where)
    if name.partition("/")[2].startswith(_OF_SCRIPT):
        raise FormatError(
            f"{where} is an archive of TorchScript (torch.jit.save), which holds a program; in torch, "
            "torch.save(torch.jit.load(FILE).state_dict(), 'NAME.pt') writes its tensors, which are read"
        )
    if method or flags & ENCRYPTED:
        raise FormatError(
            f"{where}: the record {name[:200]!r} is compressed or encrypted; expected it as torch.save stores it, as it is; load the "
            "file with torch and save it again"
        )
    if stored != nbytes:
        raise _lies(where, f"its record {name[:200]!r} has two sizes, {stored:,} and {nbytes:,}")
    return ArchiveRecord(name, header, nbytes, limit, flags, crc), end


def _full_sizes(extra: bytes, sizes: tuple[int, ...], where: str) -> list[int]:
    """Sizes and offset of an entry, those that are unset taken from its ZIP64 field."""
    unset = [number for number, size in enumerate(sizes) if size == UNSET]
    found, at = list(sizes), 0
    while unset and at + EXTRA.size <= len(extra):
        kind, nbytes = EXTRA.unpack_from(extra, at)
        at += EXTRA.size
        if kind == ZIP64 and min(nbytes, len(extra) - at) >= 8 * len(unset):
            for number, value in zip(
                unset, struct.unpack_from(f"<{len(unset)}Q", extra, at), strict=True
            ):
                found[number] = value
            return found
        at += nbytes
    if unset:
        raise _lies(where, "the size of a record is not told")
    return found


def _named(records: list[ArchiveRecord], where: str) -> dict[str, ArchiveRecord]:
    """The records by name, without the first part of their names."""
    tops = {record.name.partition("/")[0] for record in records}
    named = {record.name.partition("/")[2]: record for record in records}
    if len(tops) != 1 or len(named) != len(records):
        raise _lies(where, "its records have names that torch.save does not give")
    return named


def _lies(where: str, what: str) -> CorruptError:
    return CorruptError(
        f"{where} should be an archive of torch.save, but {what}; restore the file from a copy"
    )
