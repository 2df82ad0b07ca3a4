"""Stored bytes of a chunk that move without being decoded: copied encoded, or shared if the file system can.

The checksum of a copied chunk is compared on the way, or added if the source has none.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from reshard.checksums.crc import CRC32C, CRC32C_OF_CHECKED, linear_part
from reshard.checksums.sums import Sums, coverage
from reshard.engine.error_context import about_tensor
from reshard.engine.output import TaskOutput
from reshard.engine.read_turns import reading, turns_between
from reshard.engine.task import Result, SourceRead, StoredChunk, TargetChunk, Task, Unit
from reshard.engine.write.chunk_files import write_chunk
from reshard.errors import CorruptError, VerificationError
from reshard.formats.codecs import encode_chunk, is_seekable
from reshard.formats.codecs.source import REMEDY, TRAILER_BYTES
from reshard.formats.contents import Extent, SourceChunk
from reshard.geometry.dtypes import storage_bytes
from reshard.storage.base import FileStatus
from reshard.storage.buckets.objects import WHOLE_BYTES
from reshard.storage.copying import can_copy, cloned, copied_by_store, share_with_target
from reshard.storage.local.files import OpenFiles, storage_errors, write_all
from reshard.storage.location import locate, open_file, open_range

PIECE_BYTES = 1 << 20
"""Bytes of an encoded chunk that are in memory at once while it is copied; they stay in the cache for the checksum."""


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
        extent.path, extent.offset, extent.length, output, place.file, place.start, is_shared=is_shared
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
    if extent is None or extent.inline is not None or extent.pieces is not None:
        return None  # it is no range of a file
    if any(take.changes for take in read.takes):
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


class _Copy(Struct, frozen=True):
    """One target of the chunks that are copied: its files, or the function that stores whole chunks."""

    read: SourceRead
    unit: Unit
    files: OpenFiles
    output: TaskOutput


def pass_to_all(
    task: Task, files: Sequence[OpenFiles], outputs: Sequence[TaskOutput]
) -> list[Result]:
    """Copies the chunks that a task reads to all of its units, unchanged, each read once.

    ``files`` and ``outputs`` are those of each unit. A chunk that is not stored is written as its fill value.
    """
    (read,) = task.reads
    ends = zip(task.units, files, outputs, strict=True)
    copies = [_Copy(read, unit, file, output) for unit, file, output in ends]
    chunks: list[list[StoredChunk]] = [[] for _ in task.units]
    for number in range(len(read.chunks)):
        for found, chunk in zip(chunks, _copy_one(copies, number), strict=True):
            found.append(chunk)
    return [_result(read, unit, found) for unit, found in zip(task.units, chunks, strict=True)]


def _result(read: SourceRead, unit: Unit, chunks: Sequence[StoredChunk]) -> Result:
    boxes = {t.index: t.box for t in unit.chunks}
    sums = Sums(
        read=coverage(s.box for s in read.chunks),
        written=coverage(boxes[chunk.index] for chunk in chunks),
        is_seen=False,
    )
    moved = sum(chunk.nbytes for chunk in chunks)
    stored = read.stored_bytes
    return Result(
        unit.tensor, unit.number, (sums,), moved, stored, tuple(chunks), target=unit.target
    )


def _copy_one(copies: Sequence[_Copy], number: int) -> list[StoredChunk]:
    """Copies one chunk to all targets."""
    source = copies[0].read.chunks[number]
    targets = [copy.unit.chunks[number] for copy in copies]
    for copy, target in zip(copies, targets, strict=True):
        _check_same(copy.unit, source, target)
    return _write_one(copies, source, targets)


def _record(
    copy: _Copy, source: SourceChunk, linear: int, nbytes: int, version: str = ""
) -> StoredChunk:
    """The record of a target's chunk: ``linear`` as in StoredChunk, and the ``nbytes`` and version of its file."""
    moved = source.box.size * storage_bytes(copy.unit.dtype)
    return StoredChunk(source.index, linear, moved, nbytes, (version,) if version else ())


def _write_one(
    copies: Sequence[_Copy], source: SourceChunk, targets: Sequence[TargetChunk]
) -> list[StoredChunk]:
    """Copies from file to files if all are local, else by the store, or through memory if the chunk is small."""
    extent = source.extent
    in_place = [copy.output.in_place for copy in copies]
    is_whole = not all(in_place)
    by_store = _copied_by_store(copies, source, targets) if is_whole else None
    if by_store is not None:
        return [by_store]
    if not _is_from_file_to_files(extent, targets, is_whole=is_whole):
        return _through_memory(copies, source, targets)
    files = [_only_file(c, t) for c, t in zip(copies, targets, strict=True)]
    if not is_whole:
        return _copied(copies, source, extent, files)
    # The chunk is too large for memory, so that it is read once for each target.
    return [
        one
        for copy, file, has_ranges in zip(copies, files, in_place, strict=True)
        for one in (
            _copied([copy], source, extent, [file])
            if has_ranges
            else [_streamed(copy, source, extent, file)]
        )
    ]


def _through_memory(
    copies: Sequence[_Copy], source: SourceChunk, targets: Sequence[TargetChunk]
) -> list[StoredChunk]:
    """Reads the chunk whole, or makes it from the fill value, and writes it to each target."""
    extent = source.extent
    is_far = any(copy.read.encoding.read_ahead_bytes for copy in copies)
    nbytes = extent.length if extent is not None and is_far else 0
    with turns_between(nbytes, [copy.output.root for copy in copies]) as turns:
        with reading(turns):
            stored = None if extent is None else stored_bytes(extent)
        return [
            _write_whole(copy, source, target, _encoded(copy, source, stored))
            for copy, target in zip(copies, targets, strict=True)
        ]


def _is_in_file(extent: Extent | None) -> TypeGuard[Extent]:
    """True if a chunk has bytes in a file of its own or in a part of one."""
    return extent is not None and extent.inline is None


def _is_from_file_to_files(
    extent: Extent | None, targets: Sequence[TargetChunk], *, is_whole: bool
) -> TypeGuard[Extent]:
    """True if a chunk is in files on all sides, and is large if files are written whole."""
    if not _is_in_file(extent) or not all(target.places for target in targets):
        return False
    return not is_whole or extent.length > WHOLE_BYTES


def _copied_by_store(
    copies: Sequence[_Copy], chunk: SourceChunk, targets: Sequence[TargetChunk]
) -> StoredChunk | None:
    """Has the store itself copy an object that is one whole chunk; None if it cannot, or if several targets want the bytes."""
    extent = chunk.extent
    if len(copies) > 1 or not _is_in_file(extent) or not extent.version:
        return None
    (copy,), (target,) = copies, targets
    if not copy.unit.encoding.checksum or not copy.read.encoding.checksum or extent.offset:
        return None
    if not target.places or not can_copy(extent.path, copy.output.root, extent.length):
        return None
    place = locate(f"{copy.output.root}/{_only_file(copy, target)}")
    source = locate(extent.path)
    status = source.status()
    if status != FileStatus("file", extent.length, extent.version):
        return None  # of several chunks, or replaced: reading it raises the error
    version = copied_by_store(source, place, status)
    return _record(copy, chunk, 0, extent.length, version) if version else None


def _streamed(copy: _Copy, source: SourceChunk, extent: Extent, file: str) -> StoredChunk:
    """Copies one large chunk to one target that is written in order."""
    read, unit = copy.read, copy.unit
    with about_tensor(unit.name, source.index, read.name):
        has_new_trailer = unit.encoding.checksum and not read.encoding.checksum
        nbytes = extent.length + (TRAILER_BYTES if has_new_trailer else 0)
        crcs: list[int] = []

        def pieces() -> Iterator[bytes]:
            crc = 0
            for data in read_pieces(extent, read.encoding.read_ahead_bytes):
                crc = crc32c_of(data, crc)
                yield data
            crcs.append(crc)
            yield _trailer(copy, source, crc)

        place = locate(f"{copy.output.root}/{file}")
        version = place.write_pieces((piece for piece in pieces() if piece), nbytes)
        is_bare = not unit.encoding.checksum
        linear = linear_part(CRC32C, crcs[0], extent.length) if is_bare else 0
        return _record(copy, source, linear, nbytes, version)


def _only_file(copy: _Copy, target: TargetChunk) -> str:
    """The chunk's own file. A compressed chunk shares none, since its size is known only when it is compressed."""
    if len(target.places) != 1 or target.places[0].offset is not None:
        raise VerificationError(
            f"{copy.unit.name!r}: chunk {list(target.index)} was to be copied as it is to a place in a shared "
            "file, or to several; this is a defect of the program, please report it with the plan"
        )
    return target.places[0].file


def _copied(
    copies: Sequence[_Copy], source: SourceChunk, extent: Extent, files: Sequence[str]
) -> list[StoredChunk]:
    """Copies the stored bytes to a local file of each target, with the trailer of each."""
    read = copies[0].read
    with about_tensor(copies[0].unit.name, source.index, read.name):
        outs = [(c.files.fd(f), c.files.path(f)) for c, f in zip(copies, files, strict=True)]
        ahead_bytes = read.encoding.read_ahead_bytes
        crc = copy_range(extent, *outs[0], *outs[1:], ahead_bytes=ahead_bytes)
        written = []
        for copy, (out, path) in zip(copies, outs, strict=True):
            added = _trailer(copy, source, crc)
            write_all(out, memoryview(added), extent.length, path)
            _check_size(out, extent.length + len(added), path)
            is_bare = not copy.unit.encoding.checksum
            linear = linear_part(CRC32C, crc, extent.length) if is_bare else 0
            written.append(_record(copy, source, linear, extent.length + len(added)))
    return written


def _trailer(copy: _Copy, source: SourceChunk, crc: int) -> bytes:
    """The bytes that only the target has behind the chunk: a CRC32C, or nothing.

    Args:
        crc: CRC32C of the stored bytes, with their own trailer if there is one.

    Raises CorruptError, naming tensor and chunk, if that trailer does not fit.
    """
    if not copy.read.encoding.checksum:
        return crc.to_bytes(TRAILER_BYTES, "little") if copy.unit.encoding.checksum else b""
    if crc != CRC32C_OF_CHECKED and source.extent is not None:
        raise CorruptError(
            f"tensor {copy.read.name!r}, chunk {list(source.index)}: its bytes do not have the CRC32C "
            f"that is stored with them in {source.extent.path} ({source.extent.length} bytes at offset "
            f"{source.extent.offset}); {REMEDY}"
        )
    return b""


def _check_same(unit: Unit, source: SourceChunk, target: TargetChunk) -> None:
    """Checks that index and box of the two chunks agree, since no element is decoded on the way."""
    if (source.index, source.box) != (target.index, target.box):
        raise VerificationError(
            f"{unit.name!r}: chunk {list(source.index)} of the source was to be copied as chunk "
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


def _encoded(copy: _Copy, source: SourceChunk, stored: bytes | None) -> bytes:
    """The encoded chunk of the target: the stored bytes, or bytes made from the fill value."""
    if stored is None:
        filled = filled_bytes(copy.read.fill, math.prod(source.stored_shape))
        return b"".join(encode_chunk(copy.unit.encoding, filled))
    return stored + _trailer(copy, source, crc32c_of(stored))


def _write_whole(copy: _Copy, source: SourceChunk, target: TargetChunk, data: bytes) -> StoredChunk:
    """Writes a chunk that is in memory to its place."""
    output, version = copy.output, ""
    if target.places:
        _only_file(copy, target)
        version = write_chunk(output, target.places[0], (data,))
    elif output.put is not None:
        output.put(copy.unit.name, target.index, data)
    linear = 0 if copy.unit.encoding.checksum else CRC32C.linear(data)
    return _record(copy, source, linear, len(data), version)
