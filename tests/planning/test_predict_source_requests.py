from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from reshard.formats.contents import Encoding, Extent
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece
from reshard.planning.planner import Request, make_plan
from reshard.planning.predict_source_requests import SAMPLES, Blocks, some_chunks, source_requests
from reshard.planning.tensor_plan import Fill, Side
from reshard.storage.requests import Requests

BLOCKS = Blocks(1000, 3)
RAW, ZSTD = Encoding(read_ahead_bytes=3000), Encoding("zstd", read_ahead_bytes=3000)


def moved(
    shape: tuple[int, ...], chunk: tuple[int, ...], units: tuple[int, ...], **changes: Any
) -> Fill:
    """A move of bytes in these chunks, by units of this shape."""
    source = TensorSpec("w", shape, "uint8", Grid.regular(shape, chunk), chunk)
    target = TensorSpec("w", shape, "uint8", Grid.regular(shape, shape), shape)
    sides = Side(source, "raw", True, 0), Side(target, "zstd:1", False, 0)
    plan = make_plan([Request(Piece.whole(source, target), *sides)], 1 << 30, 2)
    given = {"units": Grid.regular(shape, units), "strategy": "block", "band_bytes": 500} | changes
    return replace(plan.tensors[0].fills[0], **given)


def at(_: str, index: tuple[int, ...]) -> Extent:
    return Extent(f"gs://b/{index}", 0, 2500, version="1")


def test_a_whole_chunk_takes_a_request_for_each_block() -> None:
    move = moved((5000,), (2500,), (5000,))
    assert source_requests(move, RAW, at, BLOCKS) == Requests(get=6, received_bytes=5000)


def test_units_that_share_a_chunk_read_what_they_need() -> None:
    move = moved((2500,), (2500,), (1250,))
    found = source_requests(move, RAW, at, BLOCKS)
    assert found == Requests(get=2 + 2, received_bytes=2500)
    packed = source_requests(move, ZSTD, at, BLOCKS)  # a stream has to be decoded from its begin
    assert packed == Requests(get=6, received_bytes=5000)


def test_rows_that_lie_apart_are_requests_of_their_own() -> None:
    move = moved((5, 500), (5, 500), (5, 100))

    def whole(_: str, index: tuple[int, ...]) -> Extent:
        return Extent(f"gs://b/{index}", 0, 2500, version="1")

    found = source_requests(move, RAW, whole, Blocks(300, 3))
    # Bands are whole rows, longer than a block: each unit reads all of them, though it wants a fifth.
    assert found.get == 5 * 5 * 2
    assert found.received_bytes == 5 * 2500


def test_chunks_in_the_index_and_missing_ones_take_none() -> None:
    move = moved((3000,), (1000,), (3000,))

    def locate(_: str, index: tuple[int, ...]) -> Extent | None:
        return None if index == (0,) else Extent("x", 0, 3, inline=b"abc")

    assert source_requests(move, RAW, locate, BLOCKS) == Requests()


def test_moves_of_many_chunks_are_estimated_from_some() -> None:
    looked = []

    def locate(_: str, index: tuple[int, ...]) -> Extent:
        looked.append(index)
        return Extent("gs://b/x", 0, 100, version="1")

    many = 10 * SAMPLES
    move = moved((many * 10,), (10,), (10,))
    found = source_requests(move, RAW, locate, BLOCKS)
    assert (found.get, found.received_bytes, len(looked)) == (many, many * 100, SAMPLES)
    assert sum(weight for _, weight in some_chunks(move, locate)) == many
