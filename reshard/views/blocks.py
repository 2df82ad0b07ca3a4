"""Blocks: a bounded cache of the bytes of views, through which files are read by many clients at once.

A block that several clients want is made once. Blocks are made in runs, each by one decoder in a thread of its own, ahead of the reader. A
run of a tensor that is turned or compressed is a row of chunks, since each of its blocks would decode the chunks anew. Where a row is too
large to be kept, the decoder waits for the run that follows::

    a raw tensor                the blocks that a reader wants, 16 MiB at most
    a turned or a zstd tensor   a row of its chunks, such as 16 MiB; what is wanted of it, for a reader that takes a little anywhere
    a zstd chunk of 1 GiB       what is wanted; what is before it in the chunk is decoded, too
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from concurrent.futures import Future
from weakref import finalize

from reshard.views.view_file import BLOCK_BYTES, Block, ViewFile, block_at

MORE_SLOTS = 32
"""Memory for blocks that are made or sent while the cache is full."""

MOST_DECODERS = 16
"""Decoders that wait for a next run; each keeps its buffers."""

SHARE = 4
"""A run is at most this part of the cache."""

LONG_BYTES = 4 << 20
"""A read of so many bytes takes whole rows, as one of a quarter of a row does."""

RUN_BYTES = 16 << 20
"""The most bytes of a run that need not be a row."""

ComingBlock = Future[memoryview]


class Blocks:
    """The blocks that were read last, of all files, in at most ``most_bytes``. Safe from any thread.

    ``runs``: the number of runs that are made at once, each with the memory of a read. Those of a storage that hangs are among them.
    """

    def __init__(self, most_bytes: int, runs: int = 8) -> None:
        self._most = max(1, most_bytes // BLOCK_BYTES)
        self._count = 0
        self._memory = _Slots(self._most + MORE_SLOTS)
        self._lock = threading.Lock()
        self._runs = threading.Semaphore(runs)
        self._blocks: OrderedDict[tuple[str, int], ComingBlock] = OrderedDict()
        self._decoders: OrderedDict[tuple[str, int], _Decoder] = OrderedDict()

    def read(self, file: ViewFile, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Bytes ``start:stop`` of a file, in pieces; errors as for ``ViewFile.read``."""
        stop = file.nbytes if stop is None else min(stop, file.nbytes)
        at = max(0, start)
        coming: dict[int, ComingBlock] = {}  # held, against others that fill the cache meanwhile
        while at < stop:
            block = block_at(file, at)
            if block.start not in coming:
                coming = self._begun(file, block, stop)
                after = max(coming) + BLOCK_BYTES
                if after < stop and self._is_row(block):
                    self._begun(file, block_at(file, after), stop)
            made = coming.pop(block.start).result()
            yield made[at - block.start : stop - block.start]
            at = block.stop

    def close(self) -> None:
        """Closes the decoders."""
        with self._lock:
            decoders = list(self._decoders.values())
            self._decoders.clear()
        for decoder in decoders:
            decoder.close()

    @property
    def _most_of_run(self) -> int:
        return self._most * BLOCK_BYTES // SHARE

    def _is_row(self, block: Block) -> bool:
        """True if chunks are decoded from their beginning, and a row of them is small enough to be kept."""
        return not block.is_seekable and block.last - block.first <= self._most_of_run

    def _begun(self, file: ViewFile, block: Block, stop: int) -> dict[int, ComingBlock]:
        """The blocks of a run from ``block`` up to ``stop``; where that one is missing, all that are missing are begun."""
        new: dict[int, ComingBlock] = {}
        first, last = self._run(block, stop)
        with self._lock:
            if (file.tag, block.start) not in self._blocks:
                starts = range(first, last, BLOCK_BYTES)
                new = {at: ComingBlock() for at in starts if (file.tag, at) not in self._blocks}
                self._blocks |= {(file.tag, at): made for at, made in new.items()}
            found = {}
            for at in range(block.start, min(stop, last), BLOCK_BYTES):
                if made := self._blocks.get((file.tag, at)):
                    found[at] = made
                    self._blocks.move_to_end((file.tag, at))
        if new:
            # A daemon: a storage that hangs must not keep a server from ending.
            thread = threading.Thread(target=self._make, args=(file, block, new), daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads
                self._fail(file, new, error)
        return found

    def _run(self, block: Block, stop: int) -> tuple[int, int]:
        """The bytes that are made with a block for a read up to ``stop``."""
        long = min(LONG_BYTES, (block.last - block.first) // 4)
        if self._is_row(block) and stop - block.start >= long:
            return block.first, block.last
        most = max(BLOCK_BYTES, min(RUN_BYTES, self._most_of_run))
        wanted = stop + (block.start - stop) % BLOCK_BYTES
        return block.start, min(block.last, wanted, block.start + most)

    def _make(self, file: ViewFile, block: Block, new: dict[int, ComingBlock]) -> None:
        """Makes blocks of the row of ``block``, by one decoder."""
        first, last = min(new), min(max(new) + BLOCK_BYTES, block.last)
        waits = not block.is_seekable and not self._is_row(block)
        with self._runs:
            with self._lock:
                decoder = self._decoders.pop((file.tag, first), None)
            decoder = decoder or _Decoder(file, first, block.last if waits else last)
            try:
                for at in range(first, last, BLOCK_BYTES):
                    data = decoder.take(self._memory)
                    if at + BLOCK_BYTES >= last:  # before a reader can want the next one
                        self._put_aside((file.tag, last), decoder, waits=waits and last < block.last)  # fmt: skip
                    if at in new:
                        self._keep(new.pop(at), data)
            except BaseException as error:  # noqa: BLE001  it is raised where the blocks are awaited
                self._fail(file, new, error)
                decoder.close()

    def _keep(self, made: ComingBlock, data: memoryview) -> None:
        """Keeps a block; drops those that were not used for the longest time."""
        made.set_result(data)
        with self._lock:
            self._count += 1
            while self._count > self._most:
                self._blocks.pop(next(key for key, each in self._blocks.items() if each.done()))
                self._count -= 1

    def _fail(self, file: ViewFile, blocks: dict[int, ComingBlock], error: BaseException) -> None:
        with self._lock:
            for at in blocks:
                self._blocks.pop((file.tag, at))
        for made in blocks.values():
            made.set_exception(error)

    def _put_aside(self, key: tuple[str, int], decoder: _Decoder, *, waits: bool) -> None:
        """Keeps a decoder that waits, in place of the one that has waited longest; closes any other."""
        dropped: _Decoder | None = decoder
        if waits:
            with self._lock:
                dropped, self._decoders[key] = self._decoders.get(key), decoder
                if len(self._decoders) > MOST_DECODERS:
                    dropped = self._decoders.popitem(last=False)[1]
        if dropped is not None:
            dropped.close()


class _Decoder:
    """Bytes ``start:stop`` of a file, which are read in order; used by one thread at a time."""

    def __init__(self, file: ViewFile, start: int, stop: int) -> None:
        self._left = stop - start
        self._pieces = file.pieces(start, stop)
        self._rest = memoryview(b"")

    def take(self, memory: _Slots) -> memoryview:
        """The next block, smaller only at the end."""
        block = memory.take()[: min(BLOCK_BYTES, self._left)]
        at = 0
        while at < len(block):
            if not len(self._rest):
                self._rest = memoryview(next(self._pieces))
            part = self._rest[: len(block) - at]
            block[at : at + len(part)] = part
            at, self._rest = at + len(part), self._rest[len(part) :]
        self._left -= at
        return block

    def close(self) -> None:
        self._pieces.close()


class _Slots:
    """Memory for blocks, each of which is used again once nothing refers to it.

    malloc would keep up to twice the memory of the blocks (measured), since they are freed in another order, and by other threads, than they
    are made.
    """

    def __init__(self, count: int) -> None:
        import numpy as np

        self._all = np.empty((count, BLOCK_BYTES), np.uint8)
        self._free = deque(range(count))

    def take(self) -> memoryview:
        """Memory of one block. More than there are slots are made singly: blocks that slow clients keep."""
        import numpy as np

        try:
            number = self._free.pop()
        except IndexError:
            return np.empty(BLOCK_BYTES, np.uint8).data
        slot = self._all[number]
        finalize(slot, self._free.append, number).atexit = False
        found: memoryview = slot.data
        return found
