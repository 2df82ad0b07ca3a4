"""Pass-through: a chunk that is the same on both sides travels encoded, without being decoded.

Its checksum is compared on the way, or added where the source has none.
"""

from __future__ import annotations

import math
import os

from reshard.engine.blame import about
from reshard.engine.coverage import coverage
from reshard.engine.sinks import Put
from reshard.engine.task import ChunkPart, SourceChunk, TargetChunk, Task, TaskResult
from reshard.errors import CorruptError, VerificationError
from reshard.formats.base import Extent
from reshard.formats.codecs import encode_chunk
from reshard.formats.codecs.source import REMEDY, TRAILER_BYTES
from reshard.layout.dtypes import storage_bytes
from reshard.storage.local import (
    OpenFiles,
    close_after_reading,
    read_range,
    start_writeback,
    storage_errors,
    write_all,
)

PIECE_BYTES = 1 << 20

_CRC_OF_CHECKED = 0x48674BC7
"""CRC32C of any bytes that are followed by their own CRC32C, little-endian."""


def pass_through(task: Task, files: OpenFiles, put: Put | None) -> TaskResult:
    """Copies every chunk of the task as it is; a chunk that is not stored is written as its fill value."""
    parts = [
        _copy_one(task, source, target, files, put)
        for source, target in zip(task.sources, task.targets, strict=True)
    ]
    read = sum(s.extent.length for s in task.sources if s.extent)
    moved = sum(p.nbytes for p in parts)
    boxes = {t.index: t.box for t in task.targets}
    return TaskResult(
        task.move,
        0,
        0,
        moved,
        read,
        tuple(parts),
        has_digest=False,
        source_cover=coverage(task.placement.from_source(s.box) for s in task.sources),
        target_cover=coverage(boxes[p.index] for p in parts),
    )


def _copy_one(
    task: Task, source: SourceChunk, target: TargetChunk, files: OpenFiles, put: Put | None
) -> ChunkPart:
    nbytes = target.box.size * storage_bytes(task.placement.target_dtype)
    _check_same(task, source, target)
    if target.file is None or source.extent is None or source.extent.inline is not None:
        data = _encoded(task, source)
        _write_whole(task, target, data, files, put)
        return ChunkPart(target.index, 0, nbytes, len(data))
    with about(task.placement.target, target.index, task.placement.source):
        out, path, length = files.fd(target.file), files.path(target.file), source.extent.length
        added = _trailer(task, source, _copy_range(source.extent, out, path))
        write_all(out, memoryview(added), length, path)
        _check_size(out, length + len(added), path)
    return ChunkPart(target.index, 0, nbytes, length + len(added))


def _trailer(task: Task, source: SourceChunk, crc: int) -> bytes:
    """What the target has behind the chunk and the source has not: a CRC32C, or nothing.

    Args:
        crc: CRC32C of the stored bytes, of their own trailer too if there is one.

    Raises CorruptError, naming tensor and chunk, where that trailer does not fit.
    """
    if not task.source_encoding.checksum:
        return crc.to_bytes(TRAILER_BYTES, "little") if task.target_encoding.checksum else b""
    if crc != _CRC_OF_CHECKED and source.extent is not None:
        raise CorruptError(
            f"tensor {task.placement.source!r}, chunk {list(source.index)}: its bytes do not have the CRC32C "
            f"that is stored with them in {source.extent.path} ({source.extent.length} bytes at offset "
            f"{source.extent.offset}); {REMEDY}"
        )
    return b""


def _check_same(task: Task, source: SourceChunk, target: TargetChunk) -> None:
    """No element is seen on its way, so that at least the two chunks must be the same."""
    if (source.index, source.box) != (target.index, target.box):
        raise VerificationError(
            f"{task.placement.target!r}: chunk {list(source.index)} of the source was to be copied as chunk "
            f"{list(target.index)}; this is a defect of the program, please report it with the plan"
        )


def _check_size(fd: int, nbytes: int, path: str) -> None:
    with storage_errors("look at", path):
        found = os.fstat(fd).st_size
    if found != nbytes:
        raise VerificationError(
            f"{path!r} has {found} bytes after {nbytes} were copied into it; the output was discarded; check the "
            "file system that holds it, then run again"
        )


def _encoded(task: Task, source: SourceChunk) -> bytes:
    """The encoded chunk as one object: read, found inline, or made from the fill value."""
    extent = source.extent
    if extent is None:
        filled = _filled(task.fill, math.prod(source.stored_shape))
        return b"".join(encode_chunk(task.target_encoding, filled))
    from awscrt.checksums import crc32c

    stored = _stored(extent)
    return stored + _trailer(task, source, int(crc32c(stored)))


def _stored(extent: Extent) -> bytes:
    if extent.inline is not None:
        return extent.inline
    with storage_errors("read", extent.path):
        data = read_range(extent.path, extent.length, extent.offset)
    return _complete(data, extent)


def _filled(fill: bytes, count: int) -> memoryview:
    import numpy as np

    if not any(fill):
        # Pages that are only read stay the kernel's one zero page.
        return memoryview(np.zeros(count * len(fill), np.uint8))  # type: ignore[arg-type]
    return memoryview(fill * count)


def _write_whole(
    task: Task, target: TargetChunk, data: bytes, files: OpenFiles, put: Put | None
) -> None:
    if target.file is not None:
        write_all(files.fd(target.file), memoryview(data), 0, files.path(target.file))
    elif put is not None:
        put(task.placement.target, target.index, data)


def _copy_range(extent: Extent, out: int, path: str) -> int:
    """Copies the stored bytes; their CRC32C."""
    from awscrt.checksums import crc32c

    with storage_errors("read", extent.path):
        source = os.open(extent.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        done = crc = 0
        while done < extent.length:
            with storage_errors("read", extent.path):
                data = os.pread(
                    source, min(extent.length - done, PIECE_BYTES), extent.offset + done
                )
            if not data:
                _complete(b"", extent, done)
            write_all(out, memoryview(data), done, path)
            crc = crc32c(data, crc)
            done += len(data)
        start_writeback(out, extent.length)
    finally:
        close_after_reading(source)
    return crc


def _complete(data: bytes, extent: Extent, done: int = 0) -> bytes:
    if done + len(data) < extent.length:
        raise CorruptError(
            f"{extent.path!r} ends inside a chunk: expected {extent.length} bytes from offset {extent.offset}, "
            f"found {done + len(data)}; the source is truncated, restore it from another copy"
        )
    return data
