"""The cache of blocks: each is made once, memory is bounded, errors reach every reader."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from reshard.errors import CorruptError
from reshard.views.blocks import BLOCK_BYTES, MORE_SLOTS, MOST_DECODERS, Blocks

PIECE = BLOCK_BYTES // 3 + 1


@dataclass
class Numbers:
    """A file whose bytes tell their place, which counts what is read of it."""

    tag: str = "numbers"
    nbytes: int = 5 * BLOCK_BYTES + 77
    is_seekable: bool = True
    fails_at: int | None = None
    starts: list[int] = field(default_factory=list)
    read_bytes: int = 0
    closed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def pieces(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        stop = self.nbytes if stop is None else stop
        with self.lock:
            self.starts.append(start)
        try:
            while start < stop:
                if self.fails_at is not None and start + PIECE > self.fails_at:
                    raise CorruptError("these bytes are wrong")
                piece = self.at(start, min(start + PIECE, stop))
                with self.lock:
                    self.read_bytes += len(piece)
                yield piece
                start += len(piece)
        finally:
            self.closed += 1

    def at(self, start: int, stop: int) -> bytes:
        first, end = start // 4, -(-stop // 4)
        whole = b"".join(n.to_bytes(4, "little") for n in range(first, end))
        return whole[start - 4 * first : stop - 4 * first]


def test_ranges_have_their_bytes_whatever_is_kept() -> None:
    file, blocks = Numbers(), Blocks(2 * BLOCK_BYTES)
    edges = [
        0,
        1,
        BLOCK_BYTES - 1,
        BLOCK_BYTES,
        BLOCK_BYTES + 1,
        3 * BLOCK_BYTES,
        file.nbytes - 1,
        file.nbytes,
        file.nbytes + 9,
    ]
    for start, stop in itertools.combinations_with_replacement(edges, 2):
        assert b"".join(blocks.read(file, start, stop)) == file.at(start, min(stop, file.nbytes))


@pytest.mark.parametrize("is_seekable", [True, False])
def test_eight_readers_read_the_file_once(is_seekable: bool) -> None:
    file, blocks = Numbers(is_seekable=is_seekable), Blocks(8 * BLOCK_BYTES)
    whole = file.at(0, file.nbytes)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: b"".join(blocks.read(file)), range(8)))
    assert found == [whole] * 8
    # Where another reader makes the next block, what was read of it in the last piece is read again.
    again = 6 * PIECE if is_seekable else 0
    assert file.nbytes <= file.read_bytes <= file.nbytes + again


def test_a_file_that_is_cheap_in_order_is_read_on_by_later_requests() -> None:
    file, blocks = Numbers(is_seekable=False), Blocks(BLOCK_BYTES)
    for start in range(0, file.nbytes, BLOCK_BYTES):
        assert b"".join(blocks.read(file, start, start + BLOCK_BYTES)) == file.at(
            start, min(start + BLOCK_BYTES, file.nbytes)
        )
    assert file.starts == [0]
    assert file.closed == 1
    file.starts.clear()
    list(blocks.read(file, 3 * BLOCK_BYTES, 3 * BLOCK_BYTES + 5))
    assert file.starts == [3 * BLOCK_BYTES]
    blocks.close()
    assert file.closed == 2


def test_a_range_of_a_seekable_file_reads_no_more_than_its_blocks() -> None:
    file, blocks = Numbers(), Blocks(BLOCK_BYTES)
    list(blocks.read(file, BLOCK_BYTES + 5, 2 * BLOCK_BYTES + 5))
    assert file.read_bytes == 2 * BLOCK_BYTES
    assert file.closed == 1


def test_memory_is_bounded() -> None:
    blocks = Blocks(3 * BLOCK_BYTES)
    for number in range(MOST_DECODERS + 9):
        file = Numbers(tag=str(number), is_seekable=False)
        list(blocks.read(file, 0, BLOCK_BYTES))
    assert blocks._bytes <= 3 * BLOCK_BYTES
    assert len(blocks._decoders) == MOST_DECODERS
    kept = [next(blocks.read(Numbers(), n * BLOCK_BYTES)) for n in range(5)]
    for number in range(2 * MORE_SLOTS):
        list(blocks.read(Numbers(tag=f"other {number}"), 0, BLOCK_BYTES))
    assert b"".join(kept) == Numbers().at(
        0, 5 * BLOCK_BYTES
    )  # no slot is used again while it is read
    kept.clear()
    assert len(blocks._memory._free) >= MORE_SLOTS


def test_an_error_reaches_every_reader_and_nothing_is_kept() -> None:
    file, blocks = Numbers(fails_at=2 * BLOCK_BYTES), Blocks(8 * BLOCK_BYTES)

    def read(_: int) -> str:
        try:
            return str(len(b"".join(blocks.read(file))))
        except CorruptError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(read, range(4))) == {"these bytes are wrong"}
    file.fails_at = None
    assert b"".join(blocks.read(file)) == file.at(0, file.nbytes)


def test_a_reader_that_leaves_harms_no_other() -> None:
    file, blocks = Numbers(), Blocks(8 * BLOCK_BYTES)
    leaving = blocks.read(file)
    next(leaving)
    leaving.close()
    assert b"".join(blocks.read(file)) == file.at(0, file.nbytes)
