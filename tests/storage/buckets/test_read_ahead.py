"""Reading ahead: the same bytes, in few large requests, and no more memory than was allowed."""

from __future__ import annotations

import random
import threading

import numpy as np
import obstore
import pytest

from reshard.errors import StorageError
from reshard.formats.codecs import open_stream
from reshard.formats.contents import Encoding, Extent
from reshard.storage.buckets.file import ReadAhead
from reshard.storage.location import locate, open_range
from tests.emulators.apis import error_answers as answers
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Refuse

BLOCK = 64 << 10
DATA = np.random.default_rng(3).bytes(10 * BLOCK + 77)


class Recorded:
    """A file of ``DATA`` that notes what is asked of it, and how much is kept at once."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.is_closed = False
        self._lock = threading.Lock()

    def fill(self, offset: int, out: memoryview) -> int:
        data = DATA[offset : offset + len(out)]
        out[: len(data)] = data
        with self._lock:
            self.asked.append((offset, len(out)))
        return len(data)

    def read(self, offset: int, nbytes: int) -> bytes:
        raise AssertionError(f"{nbytes} bytes from {offset} go into memory that is not counted")

    def close(self) -> None:
        self.is_closed = True


def ahead(file: Recorded, start: int = 0, end: int = len(DATA), blocks: int = 3) -> ReadAhead:
    return ReadAhead(file, start, end, blocks * BLOCK, BLOCK)


def test_short_reads_in_order_are_few_requests() -> None:
    file = Recorded()
    reader = ahead(file)
    got = b"".join(reader.read(at, min(1000, len(DATA) - at)) for at in range(0, len(DATA), 1000))
    assert got == DATA
    assert sorted(file.asked) == [(i * BLOCK, min(BLOCK, len(DATA) - i * BLOCK)) for i in range(11)]
    assert reader.read(len(DATA), 10) == b""
    reader.close()
    assert file.is_closed


def test_no_more_is_requested_than_is_allowed() -> None:
    file = Recorded()
    reader = ahead(file, blocks=2)
    reader.read(0, 10)
    reader.read(10, 10)
    reader.close()
    assert (0, BLOCK) in file.asked
    assert set(file.asked) <= {(0, BLOCK), (BLOCK, BLOCK)}  # the second may be cancelled in time


def test_nothing_beyond_the_range_is_requested() -> None:
    file = Recorded()
    reader = ahead(file, 100, 100 + BLOCK // 2)
    assert reader.read(100, 20) == DATA[100:120]
    assert reader.read(120, BLOCK // 2 - 20) == DATA[120 : 100 + BLOCK // 2]
    reader.close()
    assert file.asked == [(100, BLOCK // 2)]


def test_short_gaps_are_read_and_long_ones_are_not() -> None:
    file = Recorded()
    reader = ahead(file)
    for at in range(0, BLOCK, BLOCK // 8):
        assert reader.read(at, 10) == DATA[at : at + 10]
    reader.close()
    assert (0, BLOCK) in file.asked
    file = Recorded()
    reader = ahead(file)
    for at in range(3 * BLOCK, len(DATA), 2 * BLOCK):
        assert reader.read(at, 10) == DATA[at : at + 10]
    assert file.asked == [(at, 10) for at in range(3 * BLOCK, len(DATA), 2 * BLOCK)]


def test_large_reads_go_straight_to_the_caller() -> None:
    file = Recorded()
    out = bytearray(5 * BLOCK)
    assert ahead(file).fill(0, memoryview(out)) == len(out)
    assert out == DATA[: len(out)]
    assert file.asked == [(0, len(out))]


def test_any_reads_give_the_bytes_of_the_file() -> None:
    choose = random.Random(1)
    reader = ahead(Recorded())
    at = 0
    for _ in range(2000):
        nbytes = choose.choice([1, 100, 5000, BLOCK, 2 * BLOCK])
        assert reader.read(at, nbytes) == DATA[at : at + nbytes]
        at = choose.choice([at + nbytes, at + nbytes + 10, choose.randrange(len(DATA))])
    reader.close()


def test_a_stream_from_a_bucket(bucket: Bucket) -> None:
    obstore.put(bucket.store(), "a", DATA)
    file = locate(bucket.url).view() / "a"
    version = file.status().version
    bucket.emulator.log.clear()
    reader = open_range(str(file), version, "tensor 'a'", 5, len(DATA), 1 << 20)
    assert b"".join(reader.read(5 + i, 999) for i in range(0, len(DATA) - 5, 999)) == DATA[5:]
    assert bucket.emulator.log.counts() == {"get": 1}
    reader.close()
    assert type(open_range(str(file), version, "", 0, 9, 0)) is not ReadAhead


def test_an_error_on_the_way_is_raised_where_its_bytes_are_read(bucket: Bucket) -> None:
    obstore.put(bucket.store(), "a", DATA)
    file = locate(f"{bucket.url}/a").open(what="tensor 'a'")
    reader = ReadAhead(file, 0, len(DATA), 3 * BLOCK, BLOCK)
    assert reader.read(0, 10) == DATA[:10]
    bucket.emulator.faults.add(Refuse(answers.ACCESS_DENIED), operation="get", times=None)
    with pytest.raises(
        StorageError, match=r"tensor 'a': cannot read .*/a: the credentials have no permission"
    ):
        for at in range(10, len(DATA), BLOCK):
            reader.read(at, BLOCK // 2)
    reader.close()


def test_where_the_version_is_known_blocks_are_requested_at_once() -> None:
    """The first one is not waited for: here it comes only after the second was asked for."""
    second = threading.Event()

    class Slow(Recorded):
        def fill(self, offset: int, out: memoryview) -> int:
            if offset == 0:
                assert second.wait(60)
            elif offset == BLOCK:
                second.set()
            return super().fill(offset, out)

    reader = ReadAhead(Slow(), 0, len(DATA), 3 * BLOCK, BLOCK, is_pinned=True)
    assert reader.read(0, 10) == DATA[:10]
    reader.close()


def test_a_first_block_that_fails_leaves_nothing_to_wait_for() -> None:
    class Broken(Recorded):
        def fill(self, offset: int, out: memoryview) -> int:
            if offset == 0:
                raise StorageError("lost")
            return super().fill(offset, out)

    for is_pinned in (False, True):
        reader = ReadAhead(Broken(), 0, len(DATA), 3 * BLOCK, BLOCK, is_pinned=is_pinned)
        with pytest.raises(StorageError, match="lost"):
            reader.read(0, 10)
        reader.close()


def test_nothing_behind_what_is_wanted_is_read_ahead(bucket: Bucket) -> None:
    """Half a raw chunk is wanted: its file is read no further. A compressed chunk may be needed to its end."""
    obstore.put(bucket.store(), "a", DATA)
    status = locate(f"{bucket.url}/a").status()
    assert status is not None
    extent = Extent(f"{bucket.url}/a", 0, len(DATA), version=status.version)
    half = len(DATA) // 2
    bucket.emulator.log.clear()
    stream = open_stream(
        Encoding(read_ahead_bytes=4 << 20), extent, len(DATA), "tensor 'a'", wanted_bytes=half
    )
    got = bytearray(half)
    for start in range(0, half, 1000):
        stream.readinto(memoryview(got)[start : start + 1000])
    stream.close()
    assert got == DATA[:half]
    assert sum(request.bytes_out for request in bucket.emulator.log.of("get")) == half
