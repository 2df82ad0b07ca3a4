"""The first pass of a change in place: proves every checksum of a chain, and records what changes in a journal. Nothing is overwritten."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from reshard.deltas.in_place.redo_frames import BLOCK_BYTES, MOST_FRAME_BYTES, frame_of
from reshard.deltas.in_place.redo_journal import RedoTensor
from reshard.engine.decode.chunk_reader import StoredChunks, open_chunk
from reshard.engine.executor import run_tasks
from reshard.engine.limits import Limits
from reshard.engine.progress import Progress, tell_bytes
from reshard.engine.read_digests import check_decodable
from reshard.engine.task import SourceChunk
from reshard.formats.base import Reader
from reshard.formats.codecs import DecodeStream, decoder_bytes, open_stream
from reshard.formats.contents import Extent
from reshard.formats.delta.checksums import Checksum
from reshard.formats.encoding import Encoding
from reshard.storage.local.spool import Spool, Spooled

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

WINDOW_BYTES = 4 * BLOCK_BYTES
"""What is compared at once: it fits the cache of a processor."""

_KEPT_BYTES = 1 << 20
"""Frames are written together, so that a tensor has few parts in the journal."""

TASK_BYTES = 2 * WINDOW_BYTES + _KEPT_BYTES + 4 * MOST_FRAME_BYTES + (1 << 20)
"""Memory of a task beside its decoders: both windows, frames, and what numpy makes of a block."""


class ChangesTask(Struct, frozen=True):
    """A tensor that has layers over it.

    Attributes:
        need: bytes of memory.
    """

    stored: StoredChunks
    chunk: SourceChunk
    extent: Extent
    nbytes: int
    need: int


class RecordedTensor(Struct, frozen=True):
    """What was found of a tensor.

    Attributes:
        redo: what changes; None where nothing does.
        crc: CRC-64/NVME of the new bytes, 16 hex digits; "" where nothing changes.
    """

    name: str
    nbytes: int
    redo: RedoTensor | None
    crc: str


def record_changes(
    reader: Reader, spool: Spool, limits: Limits, progress: Callable[[Progress], None] | None
) -> list[RecordedTensor]:
    """Reads every tensor that has layers, compares every checksum, and adds what changes to the journal.

    Args:
        reader: of ``chain_reader``.

    Raises VerificationError and CorruptError as layers do; MemoryBudgetError where one tensor cannot be decoded within the limits.
    """
    kinds = ((tensor.spec, tensor.encoding) for tensor in reader.tensors.values())
    check_decodable(kinds, limits, TASK_BYTES)
    tasks = list(_tasks(reader))
    tell = tell_bytes(sum(task.nbytes for task in tasks), "comparing", progress)
    found: list[RecordedTensor] = []
    results = run_tasks(
        tasks,
        lambda task: _record(task, spool),
        lambda task: task.need,
        limits.max_memory,
        limits.workers,
    )
    with closing(results):
        for one in results:
            found.append(one)
            tell(one.name, one.nbytes)
    return found


def _tasks(reader: Reader) -> Iterator[ChangesTask]:
    for name, tensor in reader.tensors.items():
        spec, encoding = tensor.spec, tensor.encoding
        need = decoder_bytes(encoding, spec.nbytes) + TASK_BYTES
        for index in spec.storage.indices():  # one: tensors with layers are whole
            extent = reader.locate(name, index)
            if extent is not None and extent.layers:
                chunk = SourceChunk.at(index, spec, reader)
                yield ChangesTask(StoredChunks.of(tensor), chunk, extent, spec.nbytes, need)


def _record(task: ChangesTask, spool: Spool) -> RecordedTensor:
    name = task.stored.name
    with closing(open_chunk(task.stored, task.chunk)) as new:
        if all(layer.kind == "same" for layer in task.extent.layers):
            new.close_checked()
            return RecordedTensor(name, task.nbytes, None, "")
        bare = replace(task.extent, layers=())
        old = open_stream(Encoding(), bare, task.nbytes, task.stored.where(task.chunk))
        with closing(old):
            frames, changed, crc = _compare(old, new, task.nbytes, spool)
        new.close_checked()
    if not changed:
        return RecordedTensor(name, task.nbytes, None, "")
    last = task.extent.layers[-1]
    redo = RedoTensor(
        name,
        bare.path.rpartition("/")[2],
        bare.offset,
        task.nbytes,
        cast("Checksum", last.checksum),
        last.digest,
        changed,
        tuple(frames.parts),
    )
    return RecordedTensor(name, task.nbytes, redo, crc)


def _compare(
    old: DecodeStream, new: DecodeStream, nbytes: int, spool: Spool
) -> tuple[Spooled, int, str]:
    """The frames of what differs, how many bytes do, and the CRC of the new ones."""
    from awscrt.checksums import crc64nvme

    frames, kept = Spooled([]), bytearray()
    windows = [np.empty(min(WINDOW_BYTES, nbytes), np.uint8) for _ in range(2)]
    changed = crc = 0
    for start in range(0, nbytes, WINDOW_BYTES):
        before, after = (window[: nbytes - start] for window in windows)
        old.readinto(before.data)
        new.readinto(after.data)
        crc = crc64nvme(after.data, crc)
        for at in range(0, len(after), BLOCK_BYTES):
            end = at + BLOCK_BYTES
            frame, count = frame_of(before[at:end], after[at:end], start + at)
            changed += count
            kept += frame
        if len(kept) >= _KEPT_BYTES:
            spool.append(frames, kept)
            kept = bytearray()
    spool.append(frames, kept)
    return frames, changed, f"{crc:016x}"


def crcs_of(found: Sequence[RecordedTensor]) -> Mapping[str, str]:
    """CRC-64/NVME of the new bytes of each tensor that changes, by name."""
    return {one.name: one.crc for one in found if one.redo is not None}
