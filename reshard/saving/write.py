"""Writing this process's chunks: several threads, memory in flight bounded, checksums on the way."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from reshard.checksums.tensor_digest import CRC64NVME, linear_of_box
from reshard.engine.error_context import about_tensor
from reshard.errors import StorageError
from reshard.formats.codecs import encode_chunk
from reshard.geometry.box import Box
from reshard.saving.chunks import Piece
from reshard.saving.host_chunk import host_chunk
from reshard.saving.plan import SavePlan
from reshard.saving.tensors import LiveTensor
from reshard.storage.local import open_new, storage_errors, write_all
from reshard.storage.writeback import Writeback


class _Budget:
    """Bytes in flight, never more than allowed."""

    def __init__(self, max_bytes: int) -> None:
        self._free = max_bytes
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, nbytes: int) -> Iterator[None]:
        """Waits until ``nbytes`` are free, and holds them for the block."""
        with self._changed:
            self._changed.wait_for(lambda: nbytes <= self._free)
            self._free -= nbytes
        try:
            yield
        finally:
            with self._changed:
                self._free += nbytes
                self._changed.notify_all()


class PieceWriter:
    """Writes pieces below ``root`` and sums them up; safe from any thread."""

    def __init__(
        self,
        plan: SavePlan,
        tensors: Mapping[str, LiveTensor],
        root: str,
        max_memory: int,
        writeback: Writeback,
    ) -> None:
        self._plan = plan
        self._tensors = tensors
        self._root = root
        self._budget = _Budget(max_memory)
        self._writeback = writeback
        self._sums: dict[str, int] = defaultdict(int)
        self._lock = threading.Lock()

    @property
    def sums(self) -> Mapping[str, int]:
        """What the pieces add to each tensor's CRC-64/NVME (its linear part)."""
        return self._sums

    def write(self, piece: Piece) -> None:
        """Encode and store one chunk; StorageError where the file system refuses."""
        tensor = self._tensors[piece.name]
        target = self._plan.target.tensors[piece.name]
        with about_tensor(piece.name), self._budget.taken(self._plan.need_bytes[piece.name]):
            chunk = host_chunk(tensor, target.spec, piece.box)
            inner = chunk[Box.full(piece.box.shape).slices]
            added = linear_of_box(CRC64NVME, inner, piece.box, tensor.shape)
            self._store(piece, encode_chunk(target.encoding, chunk.reshape(-1).view("u1").data))
        with self._lock:
            self._sums[piece.name] ^= added

    def _store(self, piece: Piece, encoded: tuple[bytes | memoryview, ...]) -> None:
        file = self._plan.writer.chunk_file(piece.name, piece.index)
        if file is None:
            self._plan.writer.put(piece.name, piece.index, b"".join(encoded))
            return
        path = f"{self._root}/{file}"
        fd = open_new(path)
        try:
            size = 0
            for part in encoded:
                write_all(fd, memoryview(part), size, path)
                size += len(part)
        finally:
            with storage_errors("close", path):
                os.close(fd)
        self._writeback.begin(path, size)


def for_each(pieces: tuple[Piece, ...], work: Callable[[Piece], None], workers: int) -> None:
    """``work`` on every piece, on ``workers`` threads; raises the first error, and then does no more.

    Threads of its own: an executor takes no work once the interpreter begins to exit, which a save
    in the background must outlast.
    """
    crew = _Crew(pieces, work)
    started: list[threading.Thread] = []
    try:
        _start(crew, min(workers, len(pieces)), started)
        for thread in started:
            thread.join()
    except BaseException:
        crew.stop()
        for thread in started:
            thread.join()
        raise
    if crew.error is not None:
        raise crew.error


def _start(crew: _Crew, count: int, started: list[threading.Thread]) -> None:
    """``count`` threads, or as many as the system gives; where it gives none the caller does the work."""
    for number in range(count):
        thread = threading.Thread(target=crew.run, name=f"reshard.save-{number}")
        try:
            thread.start()
        except RuntimeError:
            break
        started.append(thread)
    if not started:
        crew.run()


class _Crew:
    """Threads that take pieces in turn until there are none, or one of them failed."""

    def __init__(self, pieces: tuple[Piece, ...], work: Callable[[Piece], None]) -> None:
        self._pieces = iter(pieces)
        self._work = work
        self._lock = threading.Lock()
        self.error: BaseException | None = None

    def run(self) -> None:
        """One thread's share."""
        while (piece := self._next()) is not None:
            try:
                self._work(piece)
            except MemoryError:
                self._fail(
                    StorageError(f"no memory for a chunk of {piece.name!r}; lower max_memory")
                )
            except BaseException as error:  # noqa: BLE001  raised again in the waiting thread
                self._fail(error)

    def stop(self) -> None:
        """No further piece is begun."""
        with self._lock:
            self._pieces = iter(())

    def _next(self) -> Piece | None:
        with self._lock:
            return next(self._pieces, None)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self.error = self.error or error
            self._pieces = iter(())
