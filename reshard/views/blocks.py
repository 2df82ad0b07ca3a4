"""Blocks: a bounded cache of the bytes of views, through which files are read by many clients at once.

A file is read in blocks. A block that several clients want is decoded once. Whoever reads on finds the decoder of the last block still
open, so that a chunk that is read in order, in one request or in many, is decoded once too.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future

from reshard.views.view_file import ViewFile

BLOCK_BYTES = 4 << 20
MOST_DECODERS = 32
"""Decoders that wait for a next block; each keeps its buffers."""

Block = tuple[memoryview, ...]
Key = tuple[str, int]


class Blocks:
    """The blocks that were read last, of all files, at most ``most_bytes`` of them. Safe from any thread."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._blocks: OrderedDict[Key, Future[Block]] = OrderedDict()
        self._decoders: OrderedDict[Key, _Decoder] = OrderedDict()

    def read(self, file: ViewFile, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Bytes ``start:stop`` of a file, in pieces; errors as for ``ViewFile.read``."""
        stop = file.nbytes if stop is None else min(stop, file.nbytes)
        start = max(0, start)
        for number in range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)):
            at = number * BLOCK_BYTES
            for piece in self._block(file, number):
                wanted = piece[max(0, start - at) : max(0, stop - at)]
                at += len(piece)
                if len(wanted):
                    yield wanted

    def close(self) -> None:
        """Closes the decoders."""
        with self._lock:
            decoders = list(self._decoders.values())
            self._decoders.clear()
        for decoder in decoders:
            decoder.close()

    def _block(self, file: ViewFile, number: int) -> Block:
        key = (file.tag, number)
        with self._lock:
            known = self._blocks.get(key)
            if known is None:
                mine = self._blocks[key] = Future[Block]()
                decoder = self._decoders.pop(key, None)
            else:
                self._blocks.move_to_end(key)
        if known is not None:
            return known.result()
        try:
            decoder = decoder or _Decoder(file, number * BLOCK_BYTES)
            block = decoder.take(BLOCK_BYTES)
        except BaseException as error:
            with self._lock:
                self._blocks.pop(key, None)
            mine.set_exception(error)
            raise
        mine.set_result(block)
        self._keep(sum(map(len, block)), (file.tag, number + 1), decoder)
        return block

    def _keep(self, nbytes: int, following: Key, decoder: _Decoder) -> None:
        """Keeps a block and the decoder behind it; drops those that were not used for the longest time."""
        dropped = [] if not decoder.is_over else [decoder]
        with self._lock:
            self._bytes += nbytes
            for old, block in list(self._blocks.items()):
                if self._bytes <= self._most_bytes:
                    break
                if block.done():
                    del self._blocks[old]
                    self._bytes -= sum(map(len, block.result()))
            if not decoder.is_over:
                if (other := self._decoders.pop(following, None)) is not None:
                    dropped.append(other)
                self._decoders[following] = decoder
            while len(self._decoders) > MOST_DECODERS:
                dropped.append(self._decoders.popitem(last=False)[1])
        for each in dropped:
            each.close()


class _Decoder:
    """A file that is read on from an offset; used by one thread at a time."""

    def __init__(self, file: ViewFile, start: int) -> None:
        self._left = file.nbytes - start
        self._pieces = file.read(start)
        self._rest = memoryview(b"")

    @property
    def is_over(self) -> bool:
        return self._left == 0

    def take(self, nbytes: int) -> Block:
        """The next bytes, fewer only at the file's end."""
        nbytes = min(nbytes, self._left)
        found: list[memoryview] = []
        wanted = nbytes
        while wanted:
            if not len(self._rest):
                self._rest = memoryview(next(self._pieces))
            found.append(self._rest[:wanted])
            wanted -= len(found[-1])
            self._rest = self._rest[len(found[-1]) :]
        self._left -= nbytes
        return tuple(found)

    def close(self) -> None:
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()
