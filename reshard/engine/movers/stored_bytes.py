"""The bytes of a chunk as they are stored: read without being decoded, or shared if the file system can."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from reshard.engine.output import TaskOutput
from reshard.engine.task import SourceChunk, SourceRead, TargetChunk, Task
from reshard.errors import CorruptError
from reshard.formats.codecs import is_seekable
from reshard.formats.contents import Extent
from reshard.storage.copying import cloned, share_with_target
from reshard.storage.local.files import write_all
from reshard.storage.location import open_file, open_range

PIECE_BYTES = 1 << 20


def stored_bytes(extent: Extent) -> bytes:
    """All of a chunk as it is stored; CorruptError if its file ends earlier."""
    if extent.inline is not None:
        return extent.inline
    with closing(open_file(extent.path, extent.version)) as file:
        return _complete(file.read(extent.offset, extent.length), extent)


def filled_bytes(fill: bytes, count: int) -> memoryview:
    """``count`` elements of the fill value, one after the other."""
    import numpy as np

    if not any(fill):
        # Pages that are only read remain the kernel's one zero page.
        return memoryview(np.zeros(count * len(fill), np.uint8))  # type: ignore[arg-type] # arrays are buffers
    return memoryview(fill * count)


def copy_range(
    extent: Extent, out: int, path: str, *others: tuple[int, str], ahead_bytes: int = 0
) -> int:
    """Copies the stored bytes, to other open files too; returns their CRC32C."""
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
    """The stored bytes, in pieces; CorruptError if there are fewer."""
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


class _Same(Struct, frozen=True):
    """A chunk of a source and the one of a target that has its bytes."""

    source: SourceChunk
    extent: Extent
    target: TargetChunk


def on_shared_blocks(task: Task, output: TaskOutput) -> Task | None:
    """The task, changed to read the target's file, which now shares the blocks of its chunk; None if nothing can be shared.

    Another process may write to the source meanwhile, and so change these blocks. So the target is read and proved.
    """
    same = _same_chunk(task)
    if same is None:
        return None
    (place,), extent = same.target.places, same.extent
    is_shared = place.offset is not None
    if not share_with_target(
        extent.path, extent.offset, extent.length, output.place, place.file, place.start, is_shared=is_shared
    ):  # fmt: skip
        return None
    stored = Extent(f"{output.root}/{place.file}", place.start, extent.length)
    (read,) = task.reads
    return replace(task, reads=(replace(read, chunks=(replace(same.source, extent=stored),)),))


def _same_chunk(task: Task) -> _Same | None:
    """The chunk that a task moves whole and unchanged, raw on both sides."""
    if task.strategy != "scatter" or not _has_one_chunk(task):
        return None
    (read,) = task.reads
    (source,), (target,), extent = read.chunks, task.units[0].chunks, read.chunks[0].extent
    if any(take.changes for take in read.takes) or not _is_range(extent):
        return None
    is_same = source.box == read.box and _holds_the_same(source, target)
    return _Same(source, extent, target) if is_same and _is_provable(read) else None


def _has_one_chunk(task: Task) -> bool:
    """True if one chunk is read, and one written."""
    units, reads = task.units, task.reads
    return len(units) == len(reads) == 1 and len(units[0].chunks) == len(reads[0].chunks) == 1


def _is_provable(read: SourceRead) -> bool:
    """True if the source has a digest or a checksum. Without one, wrong blocks would prove themselves."""
    return is_seekable(read.encoding) and (read.is_recorded or read.encoding.checksum)


def _holds_the_same(source: SourceChunk, target: TargetChunk) -> bool:
    """True if both have the same elements and no padding: padding may be anything in a source, and is zeros in a target."""
    is_bare = source.box.shape == source.stored_shape == target.stored_shape
    return is_bare and source.box == target.box and len(target.places) == 1


def _is_range(extent: Extent | None) -> TypeGuard[Extent]:
    """True if a chunk is one range of a file."""
    return extent is not None and extent.inline is None and extent.pieces is None
