"""The second pass of a change in place: writes the new bytes that the journal has, any number of times with the same result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np

from reshard.deltas.in_place.record_changes import TASK_BYTES, WINDOW_BYTES
from reshard.deltas.in_place.redo_frames import RedoFrame, redo
from reshard.deltas.in_place.redo_journal import Journal, RedoTensor
from reshard.engine.executor import run_tasks
from reshard.engine.limits import Limits
from reshard.engine.progress import Progress, tell_bytes
from reshard.errors import VerificationError
from reshard.formats.delta.checksums import hasher
from reshard.storage.local.in_place import InPlace, open_changed


def redo_changes(
    where: InPlace,
    journal: Journal,
    limits: Limits,
    progress: Callable[[Progress], None] | None,
) -> int:
    """Makes every tensor of the journal the new one; how many bytes were written. Nothing is synced.

    Raises VerificationError where a tensor does not get the checksum that is recorded of it: something else has changed its file.
    """
    tensors = journal.plan.tensors
    tell = tell_bytes(sum(tensor.nbytes for tensor in tensors), "copying", progress)

    def work(tensor: RedoTensor) -> tuple[RedoTensor, int]:
        return tensor, _redo_tensor(where, journal, tensor)

    written = 0
    results = run_tasks(tensors, work, lambda _: TASK_BYTES, limits.max_memory, limits.workers)
    with closing(results):
        for tensor, nbytes in results:
            written += nbytes
            tell(tensor.name, tensor.nbytes)
    return written


def _redo_tensor(where: InPlace, journal: Journal, tensor: RedoTensor) -> int:
    sums, written = hasher(tensor.checksum), 0
    frames = _Frames(journal.frames(tensor))
    with open_changed(where, tensor.file) as file:
        for start in range(0, tensor.nbytes, WINDOW_BYTES):
            end = min(start + WINDOW_BYTES, tensor.nbytes)
            window = file.read(tensor.offset + start, end - start)
            first, last = _redo_window(window, start, frames)
            sums.update(window)
            if last > first:
                file.write(tensor.offset + start + first, memoryview(window)[first:last])
                written += last - first
    found = sums.hexdigest()
    if found != tensor.digest:
        raise VerificationError(
            f"{where.root}: {tensor.name[:200]!r} has the {tensor.checksum} {found} after its change, but {tensor.digest} is recorded: something "
            f"else has written to {tensor.file}; put that file of the version before into {where.hidden}, and run again"
        )
    return written


def _redo_window(window: bytearray, start: int, frames: _Frames) -> tuple[int, int]:
    """Makes a window new; from where to where it was not, which is all that must be written."""
    octets = np.frombuffer(window, np.uint8)
    first = last = 0
    for frame in frames.before(start + len(window)):
        begin = frame.start - start
        if redo(octets[begin : begin + frame.nbytes], frame):
            from_byte, to_byte = frame.span
            first, last = (first if last else from_byte - start), to_byte - start
    return first, last


class _Frames:
    """Frames of a tensor, of which those of one window after the other are taken."""

    def __init__(self, frames: Iterator[RedoFrame]) -> None:
        self._frames = frames
        self._next = next(frames, None)

    def before(self, end: int) -> Iterator[RedoFrame]:
        """Those that begin before a byte of the tensor."""
        while self._next is not None and self._next.start < end:
            yield self._next
            self._next = next(self._frames, None)
