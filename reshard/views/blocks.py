"""Blocks: a bounded cache of the bytes of views, through which files are read by many clients at once.

A file is read in blocks. A block that several clients want is decoded once. A reader that goes on finds the decoder of the last block still
open, so that a chunk that is read in order, in one request or in many, is decoded once too.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from weakref import finalize

from reshard.views.view_file import ViewFile

BLOCK_BYTES = 1 << 20
MORE_SLOTS = 32
"""Memory for blocks that are made or sent while the cache is full."""

MOST_DECODERS = 16
"""Decoders of compressed files that wait for a next block; each keeps its buffers."""

BlockKey = tuple[str, int]
Decoders = OrderedDict[BlockKey, "_Decoder"]


class Blocks:
    """The blocks that were read last, of all files, at most ``most_bytes`` of them. Safe from any thread."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._memory = _Slots(most_bytes // BLOCK_BYTES + MORE_SLOTS)
        self._lock = threading.Lock()
        self._blocks: OrderedDict[BlockKey, Future[memoryview]] = OrderedDict()
        self._decoders: OrderedDict[BlockKey, _Decoder] = OrderedDict()

    def read(self, file: ViewFile, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Bytes ``start:stop`` of a file, in pieces; errors as for ``ViewFile.read``."""
        stop = file.nbytes if stop is None else min(stop, file.nbytes)
        start = max(0, start)
        end = -(-stop // BLOCK_BYTES)
        # A decoder that begins anywhere at no cost is not worth its buffers once this reader is gone.
        decoders = Decoders() if file.is_seekable else self._decoders
        try:
            for number in range(start // BLOCK_BYTES, end):
                at = number * BLOCK_BYTES
                block = self._block(file, number, end, decoders)
                yield block[max(0, start - at) : stop - at]
        finally:
            if file.is_seekable:
                _close(decoders.values())

    def close(self) -> None:
        """Closes the decoders."""
        with self._lock:
            decoders = list(self._decoders.values())
            self._decoders.clear()
        _close(decoders)

    def _block(self, file: ViewFile, number: int, end: int, decoders: Decoders) -> memoryview:
        """A block of a file; one that is decoded anew reads on up to block ``end``, or up to the end of a file that is cheap in order only."""
        key = (file.tag, number)
        with self._lock:
            known = self._blocks.get(key)
            if known is None:
                mine = self._blocks[key] = Future[memoryview]()
                decoder = decoders.pop(key, None)
            else:
                self._blocks.move_to_end(key)
        if known is not None:
            return known.result()
        try:
            if decoder is None:
                stop = min(end * BLOCK_BYTES, file.nbytes) if file.is_seekable else file.nbytes
                decoder = _Decoder(file, number * BLOCK_BYTES, stop)
            block = decoder.take(self._memory)
        except BaseException as error:
            with self._lock:
                self._blocks.pop(key, None)
            mine.set_exception(error)
            raise
        mine.set_result(block)
        self._keep(len(block), (file.tag, number + 1), decoder, decoders)
        return block

    def _keep(
        self, nbytes: int, following: BlockKey, decoder: _Decoder, decoders: Decoders
    ) -> None:
        """Keeps a block and the decoder behind it; drops those that were not used for the longest time."""
        most = 1 if decoders is not self._decoders else MOST_DECODERS
        with self._lock:
            self._bytes += nbytes
            while self._bytes > self._most_bytes:
                old = next(key for key, block in self._blocks.items() if block.done())
                self._bytes -= len(self._blocks.pop(old).result())
            dropped = [] if following not in decoders else [decoders.pop(following)]
            decoders[following] = decoder
            while len(decoders) > most:
                dropped.append(decoders.popitem(last=False)[1])
            if decoder.is_over:
                dropped.append(decoders.pop(following))
        _close(dropped)


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
