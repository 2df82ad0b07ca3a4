"""What writes a target, by numbers that are easy to add up by hand, and what clouds do differently."""

from __future__ import annotations

import math

from reshard.geometry.grid import Grid
from reshard.planning.requests import (
    ChunkReads,
    Ranges,
    ReadPattern,
    carried,
    copied,
    deleted,
    metadata,
    of_transaction,
    reads,
    requests_of_read_back,
    uploaded,
    writing_of,
)
from reshard.planning.tensor_plan import TensorPlan
from reshard.storage.requests import NONE, Requests, RequestTraits, pages_of
from tests.planning.timed_plans import move

MANY = RequestTraits(puts_of_copy=2)
"""As S3 does."""

ONE_BY_ONE = RequestTraits(deleted_at_once=1, reads_uploads_back=True)
"""As Google Cloud does."""


def test_large_files_are_uploaded_in_parts() -> None:
    assert (
        uploaded(MANY, 100, 0, 1)
        == uploaded(ONE_BY_ONE, 100, 0, 1)
        == Requests(put=1, sent_bytes=100)
    )
    parts = Requests(put=2, part=3, sent_bytes=100)
    assert uploaded(MANY, 100, 3, 2) == parts
    assert uploaded(ONE_BY_ONE, 100, 3, 2) == parts + Requests(get=2, received_bytes=100)


def test_what_is_copied() -> None:
    assert copied(ONE_BY_ONE) == Requests(head=2, copy=1)
    assert copied(MANY) == Requests(head=2, copy=1, put=2)
    once = Requests(head=1, get=1, put=1, received_bytes=7, sent_bytes=7)
    assert carried(7, from_bucket=False) == once
    assert carried(7, from_bucket=True) == once + Requests(get=1, received_bytes=7)


def test_a_target_is_read_back_file_by_file() -> None:
    chunks, files = Requests(put=1500, sent_bytes=90), Requests(put=5, sent_bytes=10)
    assert requests_of_read_back(chunks, files, 1600) == Requests(
        list=2, get=1605, received_bytes=100
    )


def test_clouds_delete_differently() -> None:
    assert (deleted(ONE_BY_ONE, 1500).delete, deleted(MANY, 1500).delete) == (1500, 2)
    small = of_transaction(MANY, 10, 0, 0)
    assert of_transaction(ONE_BY_ONE, 10, 0, 0) - small == Requests(delete=2)
    assert of_transaction(MANY, 2500, 0, 0) - small == Requests(list=2)
    assert of_transaction(MANY, 10, 5, 2) - small == Requests(sent_bytes=5 * 60 + 2 * 110)
    assert [pages_of(count) for count in (0, 1, 1000, 1001)] == [1, 1, 1, 2]


def test_metadata_grows_with_the_tensors() -> None:
    before, after = metadata(24, 200, 1, own_files=True)
    assert (before.put, after) == (
        24, Requests(list=2, head=1, put=7, sent_bytes=900 + 24 * 450 + 6 * 200)
    )  # fmt: skip
    assert metadata(24, 200, 2, own_files=True)[1].put == 11
    none, after = metadata(24, 200, 1, own_files=False)
    assert (none, after.put) == (NONE, 2)


def test_the_chunks_of_a_tensor() -> None:
    written = writing_of(TensorPlan((move(0, written=32, chunks=(0, 2, 8)),)))
    assert (written.source, written.target, written.puts, written.nbytes) == ("w", "w", 2, 32)
    assert written.raw
    assert not written.shared
    # The larger chunk has 6 elements of 4 bytes.
    assert [written.read_back(nbytes) for nbytes in (8, 24, 100)] == [6, 2, 2]


MIB = 1 << 20
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


def test_the_example_of_the_module_holds() -> None:
    """A tensor that is stored by rows, compressed, and wanted by columns."""
    once = Requests(get=8, received_bytes=48 * MIB)
    by_columns = reading((4096, 4096), (1024, 4096), (4096, 1024), in_parts=False)
    found = reads(by_columns, ChunkReads(4, once, 1.0, 12 * MIB), Ranges(8 * MIB, 24 * MIB))
    assert found == Requests(get=32, received_bytes=192 * MIB)


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
