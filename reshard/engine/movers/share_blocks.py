"""Raw chunks that are the same on both sides share their blocks where the file system can, and are read back from the target."""

from __future__ import annotations

from typing import TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from reshard.engine.output import TaskOutput
from reshard.engine.task import SourceChunk, SourceRead, TargetChunk, Task
from reshard.engine.write.chunk_files import open_place
from reshard.formats.codecs import is_seekable
from reshard.formats.contents import Extent
from reshard.storage.copying import share_blocks
from reshard.storage.local.files import OpenFiles


class _Same(Struct, frozen=True):
    """A chunk of a source and the one of a target that has its bytes."""

    source: SourceChunk
    extent: Extent
    target: TargetChunk


def on_shared_blocks(task: Task, output: TaskOutput) -> Task | None:
    """The task as it reads the target's file, which has the bytes of its chunk now; None where nothing can be shared.

    What another process writes to the source meanwhile would be in the blocks, so that the target is what is read and proved.
    """
    same = _same_chunk(task) if output.place.traits.in_place else None
    if same is None:
        return None
    (place,), extent = same.target.places, same.extent
    with OpenFiles(output.root, 1, is_there=output.is_attempt) as files:
        fd = open_place(files, place)
        if not share_blocks(extent.path, extent.offset, extent.length, fd, place.start):
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
    """Whether one chunk is read, and one written."""
    units, reads = task.units, task.reads
    return len(units) == len(reads) == 1 and len(units[0].chunks) == len(reads[0].chunks) == 1


def _is_provable(read: SourceRead) -> bool:
    """Without a digest or a checksum of the source, blocks that are not its own would prove themselves."""
    return is_seekable(read.encoding) and (read.is_recorded or read.encoding.checksum)


def _holds_the_same(source: SourceChunk, target: TargetChunk) -> bool:
    """Whether both have the same elements and no padding, which may be anything in a source, and is zeros in a target."""
    is_bare = source.box.shape == source.stored_shape == target.stored_shape
    return is_bare and source.box == target.box and len(target.places) == 1


def _is_range(extent: Extent | None) -> TypeGuard[Extent]:
    """Whether a chunk is one range of a file."""
    return extent is not None and extent.inline is None and extent.pieces is None
