"""The planner: every plan covers each element once, stays within its memory, and states its price."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reshard.errors import MemoryBudgetError, PlanError
from reshard.geometry.grid import Box, Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece
from reshard.planning.planner import WantedPiece, make_plan, smallest_memory
from reshard.planning.plans import Side
from reshard.planning.task_cost import Reading, decoded_bytes
from tests.planning.strategies import boxes, wanted_pieces

MIB = 1 << 20


def wanted(shape, source_chunk, target_chunk, *, raw_target=True, raw_source=False, name="w"):
    source = TensorSpec(name, shape, "float32", Grid.regular(shape, source_chunk), source_chunk)
    target = TensorSpec(name, shape, "float32", Grid.regular(shape, target_chunk), target_chunk)
    return WantedPiece(
        Piece.whole(source, target),
        Side(source, "raw" if raw_source else "zstd:1", raw_source, 0 if raw_source else 3 * MIB),
        Side(
            target, "raw+crc32c" if raw_target else "zstd:3", raw_target, 0 if raw_target else MIB
        ),
    )


@given(wanted_pieces(), st.sampled_from([16 * MIB, 256 * MIB]))
def test_units_cover_every_element_once(req, memory):
    (move,) = make_plan([req], memory, 2).fills
    seen = np.zeros(req.piece.shape, int)
    for box in boxes(move.units):
        seen[box.slices] += 1
    assert (seen == 1).all()


@given(wanted_pieces())
def test_a_unit_never_cuts_what_its_strategy_must_keep_whole(req):
    (move,) = make_plan([req], 256 * MIB, 2).fills
    kept = {
        "copy": move.target.spec.storage,
        "whole": move.target.spec.storage,
        "block": move.target.spec.storage,
        "scatter": move.source.spec.storage,
        "weave": move.source.spec.storage,
    }[move.strategy]
    for unit_cuts, cuts in zip(move.units.cuts, kept.cuts, strict=True):
        assert set(unit_cuts) <= set(cuts)


@given(wanted_pieces(max_size=6))
def test_decoded_bytes_count_the_chunks_of_each_unit(req):
    (move,) = make_plan([req], 256 * MIB, 2).fills
    stored = math.prod(req.source.spec.chunk_shape) * req.source.spec.itemsize
    touched = sum(
        stored
        for unit in boxes(move.units)
        for chunk in boxes(req.source.spec.storage)
        if unit.intersect(chunk) is not None or not unit.rank
    )
    assert move.price.decoded_bytes == touched
    assert move.price.source_bytes == stored * req.source.spec.storage.count


def test_chunks_without_padding_count_as_many_bytes_as_they_have():
    req = wanted((10, 10), (10, 10), (5, 10), raw_source=True)
    storage = Grid((10, 10), ((0, 1, 7, 10), (0, 10)))
    spec = replace(req.source.spec, storage=storage, chunk_shape=None)
    uneven = WantedPiece(req.piece, replace(req.source, spec=spec), req.target)
    price = make_plan([uneven], 256 * MIB, 1).tensors[0].fills[0].price
    assert (price.decoded_bytes, price.source_bytes) == (400, 400)
    halves = Grid.regular((10, 10), (5, 10))
    assert decoded_bytes(Reading(uneven.source, storage, halves)) == 4 * 10 * (7 + 9)


def renamed(wanted, name):
    """The wanted piece for a target of another name."""
    target = replace(wanted.target, spec=replace(wanted.target.spec, name=name))
    return replace(wanted, piece=replace(wanted.piece, target=name), target=target)


@given(st.lists(wanted_pieces(max_size=2000), min_size=1, max_size=4), st.integers(1, 8))
def test_the_smallest_memory_that_a_refusal_names_is_enough(reqs, workers):
    reqs = [renamed(r, f"c{n}") for n, r in enumerate(reqs)]
    need = max(map(smallest_memory, reqs))
    plan = make_plan(reqs, need, workers)
    assert plan.peak_bytes <= need
    assert all(m.price.task_bytes <= need for m in list(plan.fills))


@given(wanted_pieces(max_size=2000))
def test_less_than_the_smallest_memory_is_refused(req):
    with pytest.raises(MemoryBudgetError):
        make_plan([req], smallest_memory(req) - 1, 1)


def test_refusal_names_the_tensor_the_need_and_the_smallest_budget_that_works():
    big = wanted((65536, 2048), (16384, 1024), (8192, 2048), raw_target=False, name="emb")
    small = wanted((8, 8), (8, 8), (8, 8), name="bias")
    with pytest.raises(MemoryBudgetError) as caught:
        make_plan([small, big], 32 * MIB, 2)
    assert str(caught.value) == (
        "'emb' of shape [65536, 2048] needs at least 72 MiB of buffers (zstd:1 chunks of 16384×1024 to "
        "zstd:3 chunks of 8192×2048), but 32 MiB are allowed; allow max_memory of 72MiB, write smaller "
        "chunks (chunk_bytes), or write without compression"
    )
    assert make_plan([small, big], caught.value.smallest_bytes, 2).tasks > 0


def test_rows_to_columns_scatter_each_source_chunk_once():
    (move,) = make_plan([wanted((8192, 8192), (1024, 8192), (8192, 1024))], 64 * MIB, 2).fills
    assert (move.strategy, move.price.amplification, move.price.tasks) == ("scatter", 1.0, 8)


def test_columns_to_rows_weave_the_chunks_side_by_side():
    (move,) = make_plan([wanted((8192, 8192), (8192, 1024), (1024, 8192))], 128 * MIB, 2).fills
    assert (move.strategy, move.price.amplification, move.units.parts) == ("weave", 1.0, (1, 1))


def test_a_weave_that_does_not_fit_takes_fewer_chunks_side_by_side():
    (move,) = make_plan([wanted((8192, 8192), (8192, 64), (64, 8192))], 64 * MIB, 2).fills
    assert (move.strategy, move.price.amplification) == ("weave", 1.0)
    assert move.units.parts[1] > 1


def test_compressed_targets_are_assembled_and_a_block_too_large_repeats_decoding_at_a_price():
    req = wanted((8192, 8192), (8192, 1024), (1024, 8192), raw_target=False)
    (whole,) = make_plan([req], 1024 * MIB, 2).fills
    (cut,) = make_plan([req], 128 * MIB, 2).fills
    assert (whole.strategy, whole.price.amplification) == ("block", 1.0)
    assert (cut.strategy, cut.price.amplification > 1.0) == ("block", True)


def test_identical_compressed_chunks_are_copied_encoded():
    shape, chunk = (64, 64), (16, 64)
    spec = TensorSpec("w", shape, "float32", Grid.regular(shape, chunk), chunk)
    side = Side(spec, "zstd:1", raw=False, stream_bytes=MIB)
    (move,) = make_plan([WantedPiece(Piece.whole(spec, spec), side, side)], 64 * MIB, 2).fills
    assert move.strategy == "copy"


@pytest.mark.parametrize("raw_target", [True, False], ids=["raw", "zstd"])
@pytest.mark.parametrize("raw_source", [True, False], ids=["from raw", "from zstd"])
def test_small_chunks_that_only_change_their_encoding_move_whole(raw_source, raw_target):
    req = wanted((64, 64), (16, 64), (16, 64), raw_source=raw_source, raw_target=raw_target)
    (move,) = make_plan([req], 64 * MIB, 2).fills
    assert (move.strategy, move.price.tasks, move.price.writes) == ("whole", 4, 4)
    assert move.band_bytes == 16 * 64 * 4


@pytest.mark.parametrize(
    ("shape", "source_chunk", "target_chunk"),
    [
        ((64, 64), (16, 64), (8, 64)),
        ((60, 64), (16, 64), (16, 64)),
        ((2048, 1024), (1024, 1024), (1024, 1024)),
    ],
    ids=["unequal", "padded", "large"],
)
def test_other_chunks_are_cut(shape, source_chunk, target_chunk):
    (move,) = make_plan([wanted(shape, source_chunk, target_chunk)], 64 * MIB, 2).fills
    assert move.strategy == "scatter"


def at_once(req, chunk_bytes):
    """The same wanted piece from a codec that gains by decoding at once."""
    return replace(req, source=replace(req.source, encoded_bytes=chunk_bytes + (chunk_bytes >> 8)))


def test_chunks_are_decoded_at_once_where_memory_allows_and_they_are_not_too_large():
    shape, narrow = (4096, 4096), (4096, 512)
    eight, sixty_four = (1024, 2048), (4096, 4096)
    req = at_once(wanted(shape, eight, narrow), 8 * MIB)
    (free,) = make_plan([req], 256 * MIB, 2).fills
    (tight,) = make_plan([req], 32 * MIB, 2).fills
    assert (free.at_once, tight.at_once) == (True, False)
    open_chunks = 2 if free.strategy == "weave" else 1
    assert free.price.task_bytes >= open_chunks * 8 * MIB + req.source.encoded_bytes
    (large,) = make_plan(
        [at_once(wanted(shape, sixty_four, narrow), 64 * MIB)], 1024 * MIB, 2
    ).fills
    assert not large.at_once
    (other,) = make_plan([wanted(shape, eight, narrow)], 256 * MIB, 2).fills
    assert not other.at_once


@given(wanted_pieces(), st.sampled_from([0, 24 * MIB, 256 * MIB]))
def test_decoding_at_once_needs_no_more_memory_than_there_is(req, more):
    memory = smallest_memory(req) + more
    gaining = at_once(req, MIB)
    assert smallest_memory(gaining) <= smallest_memory(req)
    (move,) = make_plan([gaining], memory, 1).fills
    assert move.price.task_bytes <= memory


def test_chunks_that_several_units_of_work_share_are_streamed():
    """A block too large is cut, and each unit wants a part of the same chunks."""
    req = at_once(wanted((8192, 8192), (8192, 256), (256, 8192), raw_target=False), 8 * MIB)
    (whole,) = make_plan([req], 1024 * MIB, 2).fills
    (cut,) = make_plan([req], 128 * MIB, 2).fills
    assert (whole.strategy, whole.at_once) == ("block", True)
    assert (cut.strategy, cut.at_once) == ("block", False)


def test_small_chunks_move_whole_at_the_price_of_decoding_at_once():
    req = at_once(wanted((64, 64), (16, 64), (16, 64)), 4096)
    (move,) = make_plan([req], 64 * MIB, 2).fills
    assert (move.strategy, move.at_once) == ("whole", True)
    assert move.price.task_bytes >= req.source.encoded_bytes + 4096


def test_a_cast_never_moves_whole():
    req = wanted((64, 64), (64, 64), (64, 64))
    target = replace(req.target, spec=replace(req.target.spec, dtype="float16"))
    cast = WantedPiece(Piece.whole(req.source.spec, target.spec), req.source, target)
    (move,) = make_plan([cast], 64 * MIB, 2).fills
    assert move.strategy == "scatter"


def test_packed_chunks_are_copied_whole_at_a_price():
    spec = TensorSpec("w", (64, 64), "float32", Grid.regular((64, 64), (16, 64)), (16, 64))
    side = Side(spec, "zstd:1", raw=False, stream_bytes=MIB)
    req = WantedPiece(Piece.whole(spec, spec), side, side, copy_bytes=40 * MIB)
    (move,) = make_plan([req], 64 * MIB, 2).fills
    assert (move.strategy, move.price.task_bytes) == ("copy", 40 * MIB)
    with pytest.raises(MemoryBudgetError, match="needs at least 40 MiB"):
        make_plan([req], 32 * MIB, 2)


def test_decoders_and_the_encoder_share_their_memory_unless_the_target_keeps_it():
    req = wanted((64, 64), (64, 64), (32, 64), raw_target=False)
    bytes_ = {}
    for ends in (True, False):
        target = replace(req.target, stream_bytes=5 * MIB, ends_with_chunk=ends)
        (move,) = make_plan([replace(req, target=target)], 64 * MIB, 1).fills
        bytes_[ends] = move.price.task_bytes
    assert bytes_[False] - bytes_[True] == req.source.stream_bytes


def test_a_distant_source_is_read_once_by_fewer_tasks_rather_than_twice():
    req = wanted((4096, 1024), (4096, 1024), (1024, 1024), raw_target=False)
    far = replace(req, source=replace(req.source, is_distant=True))
    (near_move,) = make_plan([req], 256 * MIB, 16).fills
    (far_move,) = make_plan([far], 256 * MIB, 16).fills
    assert near_move.price.task_bytes <= 16 * MIB < far_move.price.task_bytes <= 64 * MIB
    assert near_move.price.amplification > far_move.price.amplification == 1.0


def filling(target_box, *, source="a", shape=(8,), chunk=(4,)):
    """A wanted piece that fills ``target_box`` of a target of ``shape``."""
    moved = target_box.shape
    one = TensorSpec(source, moved, "int8", Grid.whole(moved), moved)
    other = TensorSpec("b", shape, "int8", Grid.regular(shape, chunk), chunk)
    piece = Piece(source, Box.full(moved), "b", target_box, (0,), "int8", "int8")
    return WantedPiece(piece, Side(one, "raw", True, 0), Side(other, "raw", True, 0))


@pytest.mark.parametrize("box", [Box((2,), (6,)), Box((0,), (4,))])
def test_pieces_that_leave_a_part_of_its_target_empty_is_refused(box):
    with pytest.raises(PlanError) as caught:
        make_plan([filling(box)], 64 * MIB, 1)
    assert str(caught.value) == (
        f"'b' of shape [8] would be filled only from 'a' in {box}; a tensor is filled as a whole: "
        "give a piece for the rest, or give the target that shape"
    )


def test_two_pieces_into_one_place_are_refused():
    whole = Box((0,), (8,))
    with pytest.raises(
        PlanError,
        match=r"'b' would be filled from 'a' in \[0:8\] and from 'z' in \[0:8\]; every element is filled by one piece",
    ):
        make_plan([filling(whole), filling(whole, source="z")], 64 * MIB, 1)


def test_what_is_known_of_each_chunk_is_priced():
    many = wanted((1 << 18,), (1 << 18,), (4,), raw_target=False, raw_source=True)
    (move,) = make_plan([many], 1024 * MIB, 1).fills
    chunks = math.prod(move.target.spec.storage.parts) // move.units.count
    assert move.price.task_bytes >= 1024 * chunks


def test_a_trillion_parameters_are_planned_in_seconds():
    reqs = [
        wanted((16384, 32768), (128, 256), (16384, 32), name=f"layers/{i}/kernel")
        for i in range(2000)
    ]
    started = time.monotonic()
    plan = make_plan(reqs, 1024 * MIB, 2)
    assert plan.source_bytes == 2000 * 16384 * 32768 * 4
    assert time.monotonic() - started < 300  # a bound against pairs of chunks, not a timing


@pytest.mark.parametrize(
    ("raw_source", "parts"), [(True, 8), (False, 2)], ids=["raw", "compressed"]
)
def test_what_is_written_in_order_is_read_in_the_smallest_parts_that_repeat_nothing(
    raw_source, parts
):
    """A half is sent while the next one is read; a source chunk that is compressed is not decoded twice for that."""
    req = wanted((8192, 1024), (4096, 1024), (1024, 1024), raw_source=raw_source, raw_target=False)
    target = replace(req.target, in_order=Grid.whole((8192, 1024)))
    (move,) = make_plan([replace(req, target=target)], 1024 * MIB, 2).fills
    assert move.units.parts == (parts, 1)
    assert move.price.amplification == 1.0 or raw_source
