"""The zip archive that ``torch.save`` makes of one object: the place of each record's bytes.

::

    archive/data.pkl        a pickle of the object; a number names the content of a tensor's storage
    archive/byteorder       "little" or "big"
    archive/data/0, …       the bytes of each storage, uncompressed

Records are stored as they are. The sizes in local headers are left out mostly (flag 8), so that the central directory tells
them; a ZIP64 end record comes before the end record (PKWARE's APPNOTE.TXT, 4.3). The first part of a name is the name of the file that
torch wrote to, and may be anything.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import CorruptError, FormatError
from reshard.formats.limits import (
    MAX_ARCHIVE_RECORDS,
    MAX_DIRECTORY_BYTES,
    MAX_FILE_DIRECTORY_BYTES,
    MAX_FILE_RECORDS,
    MAX_ITEM_PICKLE_BYTES,
    MAX_STATE_PICKLE_BYTES,
)
from reshard.formats.torch.zip_records import (
    CENTRAL,
    CENTRAL_MAGIC,
    ENCRYPTED,
    END,
    END64,
    END64_MAGIC,
    END_MAGIC,
    EXTRA,
    LOCAL,
    LOCAL_MAGIC,
    LOCATOR,
    LOCATOR_MAGIC,
    SIZES_FOLLOW,
    UNSET,
    ZIP64,
)

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
