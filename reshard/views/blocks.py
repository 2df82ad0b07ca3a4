"""Blocks: a bounded cache of the bytes of views, through which files are read by many clients at once.

A block that several clients want is made once. The blocks of a row of chunks are made together, in order, since each of them would decode
the chunks anew. Where a row is too large for that, a reader that goes on finds the decoder of the last block still open::

    1 MiB of a raw tensor               takes the block
    1 MiB of a turned or a zstd tensor  takes a row of its chunks, such as 16 MiB
    1 MiB of a zstd chunk of 1 GiB      takes what is before it in the chunk; its decoder waits for the next one
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from weakref import finalize

from reshard.views.view_file import BLOCK_BYTES, Block, ViewFile, block_at

MORE_SLOTS = 32
"""Memory for blocks that are made or sent while the cache is full."""

MOST_DECODERS = 16
"""Decoders that wait for a next block; each keeps its buffers."""

ROWS_AT_ONCE = 8
"""Rows of chunks that are made at once, each with the buffers of its chunks."""

ROW_SHARE = 4
"""The largest row of chunks that is made as a whole is this part of the cache."""

MOST_ENDS = 64
"""Ends of the last reads: a reader that begins at one goes on there."""

ComingBlock = Future[memoryview]
DecoderKey = tuple[str, int, int]
"""The tag of a file, the next byte of a decoder, and its end."""


class Blocks:
    """The blocks that were read last, of all files, in at most ``most_bytes``. Safe from any thread."""

    def __init__(self, most_bytes: int) -> None:
        self._most = max(1, most_bytes // BLOCK_BYTES)
        self._count = 0
        self._memory = _Slots(self._most + MORE_SLOTS)
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[str, int], ComingBlock] = OrderedDict()
        self._decoders: OrderedDict[DecoderKey, _Decoder] = OrderedDict()
        self._rows = threading.Semaphore(ROWS_AT_ONCE)
        self._ends = OrderedDict[tuple[str, int], bool]()

    def read(self, file: ViewFile, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Bytes ``start:stop`` of a file, in pieces; errors as for ``ViewFile.read``."""
        stop = file.nbytes if stop is None else min(stop, file.nbytes)
        at = max(0, start)
        coming: dict[int, ComingBlock] = {}  # held, against others that fill the cache meanwhile
        own: DecoderKey | None = None
        goes_on = self._ends.pop((file.tag, at), False)
        try:
            while at < stop:
                block = block_at(file, at)
                if block.start not in coming:
                    # A reader that takes a little anywhere has no use for a row.
                    if self._is_row(block) and (goes_on or _is_long(block, stop)):
                        coming = self._row(file, block, stop)
                        self._row_after(file, block, stop)
                    else:
                        coming, own = self._next(file, block, stop, own)
                made = coming.pop(block.start).result()
                yield made[at - block.start : stop - block.start]
                at = block.stop
            with self._lock:
                self._ends[file.tag, stop] = True
                if len(self._ends) > MOST_ENDS:
                    self._ends.popitem(last=False)
        finally:
            self._drop(own)

    def close(self) -> None:
        """Closes the decoders."""
        with self._lock:
            decoders = list(self._decoders.values())
            self._decoders.clear()
        _close(decoders)

    def _is_row(self, block: Block) -> bool:
        """True if the chunks of a block are decoded from their beginning, and a row of them is small enough to be kept."""
        nbytes = block.last - block.first
        return not block.is_seekable and nbytes <= self._most * BLOCK_BYTES // ROW_SHARE

    def _row(self, file: ViewFile, block: Block, stop: int) -> dict[int, ComingBlock]:
        """The blocks of a row of chunks from ``block`` up to ``stop``; where that one is missing, all that are missing are begun."""
        new: dict[int, ComingBlock] = {}
        with self._lock:
            if (file.tag, block.start) not in self._blocks:
                starts = range(block.first, block.last, BLOCK_BYTES)
                new = {at: ComingBlock() for at in starts if (file.tag, at) not in self._blocks}
                self._blocks |= {(file.tag, at): made for at, made in new.items()}
            found = {}
            for at in range(block.start, min(stop, block.last), BLOCK_BYTES):
                if made := self._blocks.get((file.tag, at)):
                    found[at] = made
                    self._blocks.move_to_end((file.tag, at))
        if new:
            # A daemon: a storage that hangs must not keep a server from ending.
            thread = threading.Thread(
                target=self._make_row, args=(file, new, block.last), daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:  # no more threads
                self._fail(file, new, error)
        return found

    def _row_after(self, file: ViewFile, block: Block, stop: int) -> None:
        """Begins the next row for a read that goes on there."""
        if block.last < stop:
            following = block_at(file, block.last)
            if self._is_row(following) and _is_long(following, stop):
                self._row(file, following, stop)

    def _make_row(self, file: ViewFile, new: dict[int, ComingBlock], last: int) -> None:
        with self._rows:
            first = min(new)
            decoder = _Decoder(file, first, last)
            try:
                for at in range(first, max(new) + 1, BLOCK_BYTES):
                    data = decoder.take(self._memory)
                    if at in new:
                        self._keep(new.pop(at), data)
            except BaseException as error:  # noqa: BLE001  it is raised where the blocks are awaited
                self._fail(file, new, error)
            finally:
                decoder.close()

    def _next(
        self, file: ViewFile, block: Block, stop: int, own: DecoderKey | None
    ) -> tuple[dict[int, ComingBlock], DecoderKey | None]:
        """A block by itself, and the reader's own decoder behind it, if it has one.

        A decoder reads on up to ``stop``, or up to the end of chunks that are cheap in order only. One that begins anywhere at no cost is not worth
        its buffers once its reader is gone; the others stay.
        """
        end = block.last
        is_own = block.is_seekable or self._is_row(block)
        if is_own:
            end = min(end, stop + (block.start - stop) % BLOCK_BYTES)
        key = (file.tag, block.start)
        with self._lock:
            made = self._blocks.get(key)
            if made is not None:
                self._blocks.move_to_end(key)
                return {block.start: made}, own
            made = self._blocks[key] = ComingBlock()
            decoder = self._decoders.pop((file.tag, block.start, end), None)
        self._drop(own)
        try:
            decoder = decoder or _Decoder(file, block.start, end)
            self._keep(made, decoder.take(self._memory))
        except BaseException as error:
            self._fail(file, {block.start: made}, error)
            raise
        following = file.tag, block.stop, end
        self._wait(following, decoder)
        return {block.start: made}, following if is_own else None

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

    def _wait(self, key: DecoderKey, decoder: _Decoder) -> None:
        with self._lock:
            dropped = [] if key not in self._decoders else [self._decoders.pop(key)]
            if decoder.is_over:
                dropped.append(decoder)
            else:
                self._decoders[key] = decoder
            while len(self._decoders) > MOST_DECODERS:
                dropped.append(self._decoders.popitem(last=False)[1])
        _close(dropped)

    def _drop(self, key: DecoderKey | None) -> None:
        with self._lock:
            found = None if key is None else self._decoders.pop(key, None)
        _close([found] if found else [])


def _is_long(block: Block, stop: int) -> bool:
    return stop - block.start >= (block.last - block.first) // ROW_SHARE


def _close(decoders: Iterable[_Decoder]) -> None:
    for decoder in decoders:
        decoder.close()


class _Decoder:
    """Bytes ``start:stop`` of a file, which are read in order; used by one thread at a time."""

    def __init__(self, file: ViewFile, start: int, stop: int) -> None:
        self._left = stop - start
        self._pieces = file.pieces(start, stop)
        self._rest = memoryview(b"")

    @property
    def is_over(self) -> bool:
        return self._left == 0

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
