"""Reads of whole chunks and of parts of them, by numbers that are easy to add up by hand."""

from __future__ import annotations

import math

from reshard.geometry.grid import Grid
from reshard.planning.source_requests import ChunkReads, Ranges, ReadPattern, reads
from reshard.storage.requests import NONE, Requests

RANGES = Ranges(1000, 3000)
Shape = tuple[int, ...]


def reading(
    shape: Shape, chunk: Shape, units: Shape, *, in_parts: bool = True, band: int = 500
) -> ReadPattern:
    """A tensor of bytes in these chunks, which is read by units of this shape."""
    return ReadPattern(
        Grid.regular(shape, units), Grid.regular(shape, chunk), chunk, 1, band, in_parts=in_parts
    )


def stored(count: int, nbytes: int, block: int = 1000) -> ChunkReads:
    """So many chunks of so many bytes."""
    once = Requests(get=-(-nbytes // block), received_bytes=nbytes) * count
    return ChunkReads(count, once, 1.0, nbytes)


def test_a_whole_chunk_takes_a_request_for_each_block() -> None:
    found = reads(reading((5000,), (2500,), (5000,)), stored(2, 2500), RANGES)
    assert found == Requests(get=6, received_bytes=5000)


def test_units_that_share_a_chunk_read_what_they_need() -> None:
    half = (2500,), (2500,), (1250,)
    assert reads(reading(*half), stored(1, 2500), RANGES) == Requests(get=4, received_bytes=2500)
    # A stream that is not raw has to be decoded from its begin.
    packed = reads(reading(*half, in_parts=False), stored(1, 2500), RANGES)
    assert packed == Requests(get=6, received_bytes=5000)


def test_a_checksum_behind_several_blocks_is_a_request_of_its_own() -> None:
    at_once = ReadPattern(
        Grid.whole((5000,)), Grid.whole((5000,)), (5000,), 1, 5000, checks_behind=True
    )
    assert reads(at_once, stored(1, 5000), RANGES).get == 5 + 1
    assert reads(at_once, stored(1, 900), RANGES).get == 1


def test_rows_that_lie_apart_are_requests_of_their_own() -> None:
    # Bands are whole rows, longer than a block: each unit reads all of them, though it wants a fifth.
    columns = reading((5, 500), (5, 500), (5, 100))
    found = reads(columns, stored(1, 2500, 300), Ranges(300, 900))
    assert found == Requests(get=5 * 5 * 2, received_bytes=5 * 2500)


def test_gaps_between_runs_are_read_as_far_as_a_stream_reads_ahead() -> None:
    # 4 matrices of 40 rows of 100 bytes, a unit for each quarter of the rows: runs of 1,000 bytes, 3,000 apart.
    shape, unit = (4, 40, 100), (4, 10, 100)
    far = reads(reading(shape, shape, unit), stored(1, 16_000), Ranges(1000, 1000))
    assert (far.get, far.received_bytes) == (16 * 2 - 1, 16_000)
    near = reads(reading(shape, shape, unit), stored(1, 16_000), Ranges(1000, 4000))
    assert near.received_bytes == 4 * (4 * 1000 + 3 * 3000)
    assert 4 * 13 <= near.get <= 4 * 14


def test_padding_is_stored_with_a_chunk() -> None:
    # 2 chunks of 3 × 4 for 5 × 4 elements; columns are read in whole rows, which do not have the padding of a sixth row.
    grid, units = Grid.regular((5, 4), (3, 4)), Grid.regular((5, 4), (5, 2))
    found = reads(ReadPattern(units, grid, (3, 4), 1, 500, in_parts=True), stored(2, 12), RANGES)
    assert found == Requests(get=2 * 2, received_bytes=2 * 5 * 4)


def test_chunks_that_are_not_in_files_take_none() -> None:
    every = reading((3000,), (1000,), (3000,), in_parts=False)
    assert reads(every, ChunkReads(3, NONE, 0.0, 3), RANGES) == NONE
    some = ChunkReads(3, Requests(get=1, received_bytes=1000), 1 / 3, 1000)
    assert reads(every, some, RANGES) == Requests(get=1, received_bytes=1000)
    halves = reading((3000,), (1000,), (500,))
    assert reads(halves, some, RANGES) == Requests(get=2, received_bytes=1000)


def test_a_tensor_without_dimensions_or_elements() -> None:
    scalar = ReadPattern(Grid.whole(()), Grid.whole(()), (), 4, 500, in_parts=True)
    assert reads(scalar, stored(1, 4), RANGES) == Requests(get=1, received_bytes=4)
    empty = ReadPattern(Grid.whole((0, 4)), Grid.whole((0, 4)), (0, 4), 4, 500, in_parts=True)
    assert reads(empty, ChunkReads(math.prod((0, 4))), RANGES) == NONE
