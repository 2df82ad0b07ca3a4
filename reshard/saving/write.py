"""Writes this process's chunks on several threads, within the memory budget, and adds up the digests.

A save proves that its objects are in the bucket before it is published: a CheckpointManager or a lifecycle rule may delete
objects meanwhile, and readers would take the holes for zeros. Each process adds up the names and versions of the chunks that it
put, and process 0 compares the sum with one listing. Process 0 puts all metadata, and compares that one by one.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from hashlib import blake2b
from operator import xor

from reshard.checksums.sums import sum_of_box
from reshard.engine.error_context import about_tensor
from reshard.engine.output import TaskOutput
from reshard.engine.write.chunk_files import write_chunk
from reshard.errors import StorageError
from reshard.formats.codecs import encode_chunk
from reshard.geometry.grid import Box
from reshard.saving.chunks import OwnChunk
from reshard.saving.host_chunk import host_chunk
from reshard.saving.plan import SavePlan
from reshard.storage.local.syncing import Writeback
from reshard.storage.location import Location
from reshard.storage.target import first_changed


class _Budget:
    """A bound on the bytes in flight."""

    def __init__(self, max_bytes: int) -> None:
        self._free = max_bytes
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, nbytes: int) -> Iterator[None]:
        """Waits until ``nbytes`` are free, and takes them for the block."""
        with self._changed:
            self._changed.wait_for(lambda: nbytes <= self._free)
            self._free -= nbytes
        try:
            yield
        finally:
            with self._changed:
                self._free += nbytes
                self._changed.notify_all()


class ChunkWriter:
    """Writes chunks below ``root`` and adds up their digests; safe from any thread.

    Attributes:
        put_sum: exclusive or of ``put_mark`` over the objects that it put into a bucket.
    """

    def __init__(self, plan: SavePlan, root: str, max_memory: int, writeback: Writeback) -> None:
        self._plan = plan
        self._output = TaskOutput(root)
        self._budget = _Budget(max_memory)
        self._writeback = writeback
        self._sums: dict[str, int] = defaultdict(int)
        self.put_sum = 0
        self._lock = threading.Lock()

    @property
    def sums(self) -> Mapping[str, int]:
        """The contribution of the written chunks to each tensor's CRC-64/NVME (its linear part)."""
        return self._sums

    def write(self, own: OwnChunk) -> None:
        """Encodes and stores one chunk; StorageError if the store refuses."""
        tensor = self._plan.tensors[own.name]
        target = self._plan.target.tensors[own.name]
        with about_tensor(own.name), self._budget.taken(self._plan.need_bytes[own.name]):
            chunk = host_chunk(tensor, target.spec, own.box)
            inner = chunk[Box.full(own.box.shape).slices]
            added = sum_of_box(inner, own.box, tensor.shape)
            put = self._store(own, encode_chunk(target.encoding, chunk.reshape(-1).view("u1").data))
        with self._lock:
            self._sums[own.name] ^= added
            self.put_sum ^= put

    def _store(self, own: OwnChunk, encoded: tuple[bytes | memoryview, ...]) -> int:
        """Stores an encoded chunk; returns its addition to ``put_sum``."""
        files = self._plan.files
        places, put = files.places(own.name, own.index), 0
        if files.database is not None:
            files.database.put(own.name, own.index, b"".join(encoded))
        for place in places:
            if version := write_chunk(self._output, place, encoded):
                put ^= put_mark(place.file, version)
            else:
                nbytes = sum(map(len, encoded))
                self._writeback.begin(f"{self._output.root}/{place.file}", nbytes, place.start)
        return put


def for_each(chunks: tuple[OwnChunk, ...], work: Callable[[OwnChunk], None], workers: int) -> None:
    """Calls ``work`` for every chunk, on ``workers`` threads; stops at the first error, and raises it.

    It has its own threads: an executor takes no work while the interpreter exits, but a save in the background must
    still finish.
    """
    threads = _Threads(chunks, work)
    started: list[threading.Thread] = []
    try:
        _start(threads, min(workers, len(chunks)), started)
        for thread in started:
            thread.join()
    except BaseException:
        threads.stop()
        for thread in started:
            thread.join()
        raise
    if threads.error is not None:
        raise threads.error


def _start(threads: _Threads, count: int, started: list[threading.Thread]) -> None:
    """Starts up to ``count`` threads; if the system allows none, the caller does the work."""
    for number in range(count):
        thread = threading.Thread(target=threads.run, name=f"reshard.save-{number}")
        try:
            thread.start()
        except RuntimeError:
            break
        started.append(thread)
    if not started:
        threads.run()


class _Threads:
    """Threads that take one chunk after another until none is left, or one fails."""

    def __init__(self, chunks: tuple[OwnChunk, ...], work: Callable[[OwnChunk], None]) -> None:
        self._left = iter(chunks)
        self._work = work
        self._lock = threading.Lock()
        self.error: BaseException | None = None

    def run(self) -> None:
        """The loop of one thread."""
        while (own := self._next()) is not None:
            try:
                self._work(own)
            except MemoryError:
                self._fail(StorageError(f"no memory for a chunk of {own.name!r}; lower max_memory"))
            except BaseException as error:  # noqa: BLE001  raised again in the waiting thread
                self._fail(error)

    def stop(self) -> None:
        """Makes the threads stop after their current chunks."""
        with self._lock:
            self._left = iter(())

    def _next(self) -> OwnChunk | None:
        with self._lock:
            return next(self._left, None)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self.error = self.error or error
            self._left = iter(())


def put_mark(file: str, version: str) -> int:
    """An object's addition to the sum (by exclusive or): a hash of its path below the root and its version."""
    return int.from_bytes(blake2b(f"{file}\0{version}".encode(), digest_size=8).digest(), "big")


def check_saved(
    plan: SavePlan, root: Location, put_sums: Iterable[int], metadata: Mapping[str, str]
) -> None:
    """Raises StorageError unless ``root`` has everything as it was put; a missing chunk is named with its tensor.

    Args:
        put_sums: of every process that put chunks.
        metadata: the version of each other object, by its path.
    """
    listed, found_sum = root.view(), 0
    if (changed := first_changed(listed, metadata)) is not None:
        raise StorageError(
            f"{changed}: it was put, but is not there now, or is another object; {_REMEDY}"
        )
    for name, tensor in plan.target.tensors.items():
        for index in tensor.spec.storage.indices():
            for place in plan.files.places(name, index):
                found = (listed / place.file).status()
                if found is None or found.kind != "file":
                    raise StorageError(
                        f"tensor {name!r}, chunk {list(index)}: it was put below {root}, but is not there now; {_REMEDY}"
                    )
                found_sum ^= put_mark(place.file, found.version)
    if found_sum != reduce(xor, put_sums, 0):
        raise StorageError(f"objects below {root} are not those that were put; {_REMEDY}")


_REMEDY = (
    "nothing was published; make sure that nothing else writes or removes there, and save again"
)
