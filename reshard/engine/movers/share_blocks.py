"""Raw chunks that are the same on both sides share their blocks where the file system can, and are read back from the target."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from reshard.engine.output import TaskOutput
from reshard.engine.task import SourceChunk, TargetChunk, Task
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
    if task.strategy != "scatter" or len(task.units) > 1 or len(task.reads) > 1:
        return None
    (unit,), (read,) = task.units, task.reads
    if len(unit.chunks) > 1 or len(read.chunks) > 1 or any(take.changes for take in read.takes):
        return None
    (source,), (target,) = read.chunks, unit.chunks
    extent = source.extent
    if extent is None or extent.inline is not None or extent.pieces is not None:
        return None
    # Without a digest or a checksum of the source, blocks that are not its own would prove themselves.
    is_provable = read.is_recorded or read.encoding.checksum
    is_whole = source.box == target.box == read.box and len(target.places) == 1
    # What pads a chunk may be anything in the source, and is zeros in the target.
    is_bare = source.box.shape == source.stored_shape == target.stored_shape
    if is_provable and is_whole and is_bare and is_seekable(read.encoding):
        return _Same(source, extent, target)
    return None
