"""The stored bytes of one chunk, read in order and never beyond their end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reshard.errors import CorruptError
from reshard.formats.codecs.gather import Gather
from reshard.formats.contents import Extent
from reshard.geometry.grid import Box
from reshard.geometry.row_major import dense_runs
from reshard.storage.location import open_range

if TYPE_CHECKING:
    from reshard.storage.base import OpenFile

TRAILER_BYTES = 4
"""A CRC32C, little-endian, as zarr3's crc32c codec appends it."""

_REST_BYTES = 256 << 10

REMEDY = "the source is damaged there: restore it from a replica or take another step"


class Source:
    """The encoded bytes of a chunk without their trailer; has at most one file open.

    Args:
        where: tensor and chunk, for messages.
        checksum: True if a CRC32C of the encoded bytes follows them.
        read_ahead_bytes: see ``Encoding``.
        wanted_bytes: the number of bytes behind which nothing is read ahead; None for all.

    Attributes:
        position: the number of bytes that were read or skipped.
        length: the number of all bytes, without the trailer.

    Raises StorageError if the file cannot be opened or read, CorruptError if it is too short.
    """

    def __init__(
        self,
        extent: Extent,
        where: str,
        checksum: bool,
        read_ahead_bytes: int = 0,
        wanted_bytes: int | None = None,
    ) -> None:
        self.extent = extent
        self.where = where
        self.position = 0
        self.length = extent.length - (TRAILER_BYTES if checksum else 0)
        self.has_checksum = checksum
        self._crc = 0
        self._in_order = True
        self._file: OpenFile | None = None
        self._gather: Gather | None = None
        self._check_extent()
        if extent.pieces is not None:
            self._gather = Gather(extent.pieces, where, REMEDY, read_ahead_bytes)
        elif extent.inline is None:
            ahead_of = extent.length if wanted_bytes is None else min(wanted_bytes, extent.length)
            end = extent.offset + ahead_of
            self._file = open_range(
                extent.path, extent.version, where, extent.offset, end, read_ahead_bytes
            )

    def read(self, nbytes: int = -1) -> bytes:
        """The next bytes, fewer only at the end."""
        left = self.length - self.position
        data = self.at(self.position, left if nbytes < 0 else min(nbytes, left))
        self._passed(data)
        return data

    def readinto(self, out: memoryview) -> None:
        """Fill ``out`` with the next bytes, straight from the file."""
        self.fill(self.position, out)
        self._passed(out)

    def seek(self, nbytes: int) -> None:
        """Skip bytes without reading them; the checksum is then unknown."""
        self.position += nbytes
        self._in_order = self._in_order and not nbytes

    def at(self, position: int, nbytes: int) -> bytes:
        """``nbytes`` bytes from ``position``, wherever the stream is."""
        if self.extent.inline is not None:
            return self.extent.inline[position : position + nbytes]
        if self._file is not None:
            place = self.extent.offset + position
            data = self._file.read(place, nbytes)
            if len(data) < nbytes:
                raise self._ends(place + len(data))
            return data
        buffer = bytearray(nbytes)
        self.fill(position, memoryview(buffer))
        return bytes(buffer)

    def read_rest(self) -> None:
        """Reads the bytes that were not read in order, for the checksum."""
        while self.read(_REST_BYTES):
            pass

    def check_trailer(self) -> bool:
        """Compare the checksum; False if there is one but not every byte was read in order."""
        if not self.has_checksum:
            return True
        if not self._in_order or self.position != self.length:
            return False
        stored = int.from_bytes(self.at(self.length, TRAILER_BYTES), "little")
        if stored != self._crc:
            raise self.corrupt(
                f"its CRC32C is recorded as {stored:08x}, but its bytes give {self._crc:08x}"
            )
        return True

    def corrupt(self, what: str) -> CorruptError:
        """The CorruptError for a chunk whose bytes are wrong."""
        extent = self.extent
        return CorruptError(
            f"{self.where}: {what} (stored in {extent.path}, {extent.length} bytes at offset "
            f"{extent.offset}); {REMEDY}"
        )

    def close(self) -> None:
        """Close the file, if there is one; may be called twice."""
        if self._file is not None:
            self._file.close()
        if self._gather is not None:
            self._gather.close()

    def _check_extent(self) -> None:
        extent = self.extent
        if extent.offset < 0 or self.length < 0:
            raise self.corrupt("no chunk can be there")
        if extent.inline is not None and len(extent.inline) != extent.length:
            raise self.corrupt(f"its index contains {len(extent.inline)} bytes of it")

    def fill(self, position: int, out: memoryview) -> None:
        """Fill ``out`` with the bytes from ``position``, wherever the stream is."""
        if self.extent.inline is not None:
            out[:] = self.extent.inline[position : position + len(out)]
            return
        if self._gather is not None:
            self._gather.fill(position, out)
            return
        if self._file is not None:
            place = self.extent.offset + position
            done = self._file.fill(place, out)
            if done < len(out):
                raise self._ends(place + done)

    def fill_box(self, box: Box, around: Sequence[int], itemsize: int, out: memoryview) -> None:
        """Fill ``out`` with a box of a raw chunk of shape ``around``, run by run."""
        if self._gather is not None:
            self._gather.fill_box(box, out)
            return
        for first, place in dense_runs(box, around, itemsize):
            self.fill(first, out[place])

    def _passed(self, data: bytes | memoryview) -> None:
        self.position += len(data)
        if self.has_checksum and self._in_order:
            from awscrt.checksums import crc32c

            self._crc = crc32c(data, self._crc)

    def _ends(self, place: int) -> CorruptError:
        return self.corrupt(f"the file ends at byte {place}")
