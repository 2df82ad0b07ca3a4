"""The bytes of a chunk as they are stored, taken from where it lies without being decoded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from reshard.errors import CorruptError
from reshard.formats.contents import Extent
from reshard.storage.copying import cloned
from reshard.storage.local.files import write_all
from reshard.storage.location import open_file, open_range

PIECE_BYTES = 1 << 20


def stored_bytes(extent: Extent) -> bytes:
    """All of a chunk as it is stored; CorruptError where its file ends before."""
    if extent.inline is not None:
        return extent.inline
    with closing(open_file(extent.path, extent.version)) as file:
        return _complete(file.read(extent.offset, extent.length), extent)


def filled_bytes(fill: bytes, count: int) -> memoryview:
    """``count`` elements of the fill value, one after the other."""
    import numpy as np

    if not any(fill):
        # Pages that are only read stay the kernel's one zero page.
        return memoryview(np.zeros(count * len(fill), np.uint8))  # type: ignore[arg-type] # arrays are buffers
    return memoryview(fill * count)


def copy_range(
    extent: Extent, out: int, path: str, *others: tuple[int, str], ahead_bytes: int = 0
) -> int:
    """Copies the stored bytes, to other open files too; their CRC32C."""
    if not others:
        crc = cloned(extent.path, extent.offset, extent.length, out, path)
        if crc is not None:
            return crc
    outs = ((out, path), *others)
    done, crc = 0, 0
    for data in read_pieces(extent, ahead_bytes):
        for fd, name in outs:
            write_all(fd, memoryview(data), done, name)
        crc = crc32c_of(data, crc)
        done += len(data)
    return crc


def read_pieces(extent: Extent, ahead_bytes: int) -> Iterator[bytes]:
    """The stored bytes, in pieces; CorruptError where there are fewer."""
    done, end = 0, extent.offset + extent.length
    opened = open_range(extent.path, extent.version, "", extent.offset, end, ahead_bytes)
    with closing(opened) as source:
        while done < extent.length:
            data = source.read(extent.offset + done, min(extent.length - done, PIECE_BYTES))
            if not data:
                _complete(b"", extent, done)
            yield data
            done += len(data)


def crc32c_of(data: bytes, crc: int = 0) -> int:
    """CRC32C of bytes that follow others."""
    from awscrt.checksums import crc32c

    return int(crc32c(data, crc))


def _complete(data: bytes, extent: Extent, done: int = 0) -> bytes:
    if done + len(data) < extent.length:
        raise CorruptError(
            f"{extent.path!r} ends inside a chunk: expected {extent.length} bytes from offset {extent.offset}, "
            f"found {done + len(data)}; the source is truncated, restore it from another copy"
        )
    return data
