"""The cache of blocks: each is made once, memory is bounded, errors reach every reader."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from reshard.errors import CorruptError
from reshard.views import blocks as module
from reshard.views.blocks import MORE_SLOTS, MOST_DECODERS, SHARE, Blocks
from reshard.views.view_file import BLOCK_BYTES, Block

PIECE = BLOCK_BYTES // 3 + 1


@dataclass
class Numbers:
    """A file whose bytes tell their place, which counts what is read of it; rows of chunks have ``row`` bytes."""

    tag: str = "numbers"
    nbytes: int = 5 * BLOCK_BYTES + 77
    is_seekable: bool = True
    row: int = 0
    fails_at: int | None = None
    starts: list[int] = field(default_factory=list)
    read_bytes: int = 0
    closed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def block_at(self, offset: int) -> Block:
        row = self.row or self.nbytes
        first = offset - offset % row
        last = min(first + row, self.nbytes)
        start = offset - (offset - first) % BLOCK_BYTES
        return Block(start, min(start + BLOCK_BYTES, last), first, last, self.is_seekable)

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


@pytest.fixture(autouse=True)
def _of_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "block_at", Numbers.block_at)


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


def test_ranges_of_rows_have_their_bytes() -> None:
    """A row that is no multiple of a block has a short one at its end."""
    file, blocks = Numbers(is_seekable=False, row=2 * BLOCK_BYTES + 5), Blocks(9 * BLOCK_BYTES)
    edges = [
        0,
        1,
        BLOCK_BYTES,
        *(file.row * n + d for n in (1, 2) for d in (-1, 0, 6)),
        file.nbytes,
    ]
    for start, stop in itertools.combinations_with_replacement(edges, 2):
        assert b"".join(blocks.read(file, start, stop)) == file.at(start, stop)


@pytest.mark.parametrize(
    "file",
    [Numbers(), Numbers(is_seekable=False), Numbers(is_seekable=False, row=2 * BLOCK_BYTES - 3)],
    ids=["raw", "one chunk", "rows of chunks"],
)
def test_eight_readers_read_the_file_once(file: Numbers) -> None:
    blocks = Blocks(8 * BLOCK_BYTES)
    whole = file.at(0, file.nbytes)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: b"".join(blocks.read(file)), range(8)))
    assert found == [whole] * 8
    # Where two readers meet at a block, the decoder of one is dropped with what it has read of it.
    again = 6 * PIECE if file.is_seekable else 0
    assert file.nbytes <= file.read_bytes <= file.nbytes + again


def test_a_row_is_made_for_a_long_read() -> None:
    row = 8 * BLOCK_BYTES
    at = row + 2 * BLOCK_BYTES

    def read(*edges: int) -> Numbers:
        file = Numbers(nbytes=3 * row, is_seekable=False, row=row)
        blocks = Blocks(SHARE * row)
        for start, stop in itertools.pairwise(edges):
            list(blocks.read(file, start, stop))
        return file

    assert read(at, at + BLOCK_BYTES + 5).starts == [at]
    whole = read(at, at + 2 * BLOCK_BYTES, row, 2 * row)
    assert (whole.starts, whole.read_bytes) == ([row], row)


def test_an_error_in_a_row_reaches_every_reader() -> None:
    file = Numbers(is_seekable=False, row=4 * BLOCK_BYTES, fails_at=3 * BLOCK_BYTES)
    blocks = Blocks(32 * BLOCK_BYTES)

    def read(_: int) -> int:
        pieces, count = blocks.read(file), 0
        with pytest.raises(CorruptError, match="these bytes are wrong"):
            for piece in pieces:
                count += len(piece)
        return count

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(read, range(4))) == {2 * BLOCK_BYTES}
    file.fails_at = None
    assert b"".join(blocks.read(file)) == file.at(0, file.nbytes)


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
    file, blocks = Numbers(), Blocks(8 * BLOCK_BYTES)
    list(blocks.read(file, BLOCK_BYTES + 5, 2 * BLOCK_BYTES + 5))
    assert (file.starts, file.read_bytes, file.closed) == ([BLOCK_BYTES], 2 * BLOCK_BYTES, 1)


def test_memory_is_bounded() -> None:
    blocks = Blocks(3 * BLOCK_BYTES)
    for number in range(MOST_DECODERS + 9):
        file = Numbers(tag=str(number), is_seekable=False)
        list(blocks.read(file, 0, BLOCK_BYTES))
    assert blocks._count <= 3
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


def test_a_storage_that_hangs_delays_no_other() -> None:
    """Neither what is read of it nor what is read ahead keeps the last of three runs."""
    answers = threading.Event()

    class Hanging(Numbers):
        def pieces(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
            answers.wait()
            return super().pieces(start, stop)

    hanging = Hanging(tag="hangs", is_seekable=False, row=2 * BLOCK_BYTES)
    file, blocks = Numbers(), Blocks(16 * BLOCK_BYTES, 3)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: b"".join(blocks.read(hanging)))
        assert b"".join(blocks.read(file)) == file.at(0, file.nbytes)
        assert not waiting.done()
        answers.set()
        assert waiting.result() == hanging.at(0, hanging.nbytes)


def test_no_more_runs_are_made_at_once_than_are_given_memory() -> None:
    made, most = threading.Semaphore(2), []

    class Watched(Numbers):
        def pieces(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
            most.append(made.acquire(blocking=False))
            try:
                yield from super().pieces(start, stop)
            finally:  # a decoder is closed at its last byte
                made.release()

    blocks = Blocks(64 * BLOCK_BYTES, 2)
    files = [Watched(tag=str(number)) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda file: b"".join(blocks.read(file)), files))
    assert len(most) == 8 and all(most)


def test_a_reader_that_leaves_harms_no_other() -> None:
    file, blocks = Numbers(), Blocks(8 * BLOCK_BYTES)
    leaving = blocks.read(file)
    next(leaving)
    leaving.close()
    assert b"".join(blocks.read(file)) == file.at(0, file.nbytes)
