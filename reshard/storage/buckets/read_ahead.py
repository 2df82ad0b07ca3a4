"""Reads a range of a file ahead of a sequential reader, in few large requests."""

from __future__ import annotations

import mmap
from collections import deque
from concurrent.futures import Future, wait

from msgspec import Struct

from reshard.storage.base import OpenFile
from reshard.storage.buckets.file import request_threads

GAP_SHARE = 8
"""A reader that skips at most a request divided by this number still reads in order: a new request would take longer."""


class _Block(Struct):
    """Bytes of the file from ``start``, there or on their way; fewer than requested at the file's end."""

    start: int
    end: int
    data: Future[memoryview]


class ReadAhead:
    """A range of an open file; implements ``base.OpenFile``.

    Consecutive short reads are answered from blocks, which are requested before they are needed. Reads of a
    block or more, and reads elsewhere, go to the file.

    Args:
        ahead_bytes: memory of all blocks together.
        request_bytes: of one block.
        is_pinned: true if the file was opened in a version; else the first request decides it, and no other is made meanwhile.
    """

    def __init__(
        self,
        file: OpenFile,
        start: int,
        end: int,
        ahead_bytes: int,
        request_bytes: int,
        *,
        is_pinned: bool = False,
    ) -> None:
        self._file = file
        self._is_pinned = is_pinned
        self._end = end
        self._block_bytes = min(request_bytes, ahead_bytes)
        self._most_blocks = max(1, ahead_bytes // self._block_bytes)
        self._blocks: deque[_Block] = deque()
        self._expected = start

    def fill(self, offset: int, out: memoryview) -> int:
        done = 0
        while done < len(out):
            at = offset + done
            block = self._block_at(at) or self._begin_at(at, len(out) - done)
            if block is None:
                done += self._file.fill(at, out[done:])
                break
            data = block.data.result()[at - block.start :][: len(out) - done]
            out[done : done + len(data)] = data
            done += len(data)
            if not len(data):
                break
        self._expected = offset + done
        return done

    def read(self, offset: int, nbytes: int) -> bytes:
        out = bytearray(nbytes)
        done = self.fill(offset, memoryview(out))
        return bytes(out) if done == nbytes else bytes(out[:done])

    def close(self) -> None:
        """Waits for pending requests, since their memory is counted."""
        self._forget()
        self._file.close()

    def _block_at(self, at: int) -> _Block | None:
        """The block that has the byte; drops earlier blocks, and requests later ones."""
        while self._blocks and self._blocks[0].end <= at:
            self._blocks.popleft()
        if not self._blocks or at < self._blocks[0].start:
            return None
        self._request_more()
        return self._blocks[0]

    def _request_more(self) -> None:
        """Requests further blocks, as far as memory goes."""
        while len(self._blocks) < self._most_blocks and self._blocks[-1].end < self._end:
            start = self._blocks[-1].end
            end = min(start + self._block_bytes, self._end)
            self._blocks.append(
                _Block(start, end, request_threads().submit(self._load, start, end))
            )

    def _begin_at(self, at: int, nbytes: int) -> _Block | None:
        """A block from this byte on; None if the reader does not go in order, or wants more than a block."""
        is_in_order = 0 <= at - self._expected <= self._block_bytes // GAP_SHARE
        if not is_in_order or nbytes >= self._block_bytes or at >= self._end:
            return None
        self._forget()
        loaded: Future[memoryview] = Future()
        end = min(at + self._block_bytes, self._end)
        self._blocks.append(_Block(at, end, loaded))
        if self._is_pinned:
            self._request_more()
        try:
            loaded.set_result(self._load(at, end))
        except BaseException:
            self._blocks.popleft()  # it never arrives
            raise
        self._is_pinned = True
        return self._blocks[0]

    def _forget(self) -> None:
        for block in self._blocks:
            block.data.cancel()
        wait([block.data for block in self._blocks])
        self._blocks.clear()

    def _load(self, start: int, end: int) -> memoryview:
        out = memoryview(mmap.mmap(-1, end - start, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        return out[: self._file.fill(start, out)]
