"""Plans for several targets: reads that are shared where it pays and fits, and honest prices."""

from __future__ import annotations

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reshard.errors import MemoryBudgetError
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece
from reshard.planning.planner import WantedPiece, make_multi_plan, make_plan, smallest_memory
from reshard.planning.plans import MultiPlan, Side
from tests.planning.strategies import chunked, pairs, wanted_pieces

MIB = 1 << 20


def wanted(shape, source_chunk, target_chunk, *, raw=True, dtype="float32", name="w"):
    source = TensorSpec(name, shape, "float32", Grid.regular(shape, source_chunk), source_chunk)
    target = TensorSpec(name, shape, dtype, Grid.regular(shape, target_chunk), target_chunk)
    return WantedPiece(
        Piece.whole(source, target),
        Side(source, "zstd:1", False, 1 << 20),
        Side(target, "raw" if raw else "zstd:3", raw, 0 if raw else 1 << 16),
    )


@st.composite
def groups(draw: st.DrawFn):
    """Wanted pieces of one tensor to two or three targets, each with chunks and an encoding of its own."""
    shape, source_chunk, _ = draw(chunked())
    chunks = st.tuples(*(st.integers(1, n) for n in shape))
    dtypes = st.sampled_from(("float32", "bfloat16", "float64"))
    return [
        [wanted(shape, source_chunk, draw(chunks), raw=draw(st.booleans()), dtype=draw(dtypes))]
        for _ in range(draw(st.integers(2, 3)))
    ]


@given(groups(), st.integers(0, 12), st.integers(1, 3))
def test_a_read_keeps_what_its_targets_need(of_targets, mib, workers):
    need = max(smallest_memory(one) for (one,) in of_targets)
    plan = make_multi_plan(of_targets, need + mib * MIB, workers)
    assert sorted(at.target for read in plan.reads for at in read.fills) == list(
        range(len(of_targets))
    )
    for read in plan.reads:
        moves = [plan.fill(at) for at in read.fills]
        assert len({(m.units.cuts, m.band_bytes, m.price.task_bytes) for m in moves}) == 1
        assert moves[0].price.task_bytes <= plan.max_memory
        for move in moves:
            if move.strategy == "block":  # whoever assembles a chunk sees all of it
                grid = move.piece.target_grid(move.target.spec.storage)
                assert move.units.common(grid) == move.units
    assert plan.decoded_bytes <= sum(one.decoded_bytes for one in plan.plans)
    assert plan.repeated_bytes >= 0
    assert plan.peak_bytes <= plan.max_memory


@given(wanted_pieces(), st.integers(0, 64), st.integers(1, 3))
def test_one_target_is_planned_as_alone(one, mib, workers):
    memory = smallest_memory(one) + mib * MIB
    alone = make_plan([one], memory, workers)
    joint = make_multi_plan([[one]], memory, workers)
    assert joint.plans == (alone,)
    assert (joint.tasks, joint.decoded_bytes) == (alone.tasks, alone.decoded_bytes)
    assert (joint.source_bytes, joint.peak_bytes) == (alone.source_bytes, alone.peak_bytes)


def test_raw_targets_of_other_meshes_and_types_share_one_decoding():
    shape = (8192, 8192)
    plan = make_multi_plan(
        [
            [wanted(shape, (1024, 8192), (8192, 1024))],
            [wanted(shape, (1024, 8192), (2048, 8192), dtype="bfloat16")],
            [wanted(shape, (1024, 8192), (4096, 4096), raw=False)],
        ],
        1024 * MIB,
        2,
    )
    assert len(plan.reads) == 1
    assert plan.decoded_bytes == plan.source_bytes == math.prod(shape) * 4
    assert (plan.repeated_bytes, plan.amplification) == (0, 1.0)


def test_what_the_budget_forces_to_be_read_again_is_said():
    """Two compressed targets with chunks of 64 MiB: there is room for those of one at a time."""
    shape = (8192, 8192)
    of_targets = [
        [wanted(shape, (1024, 8192), (8192, 2048), raw=False)],
        [wanted(shape, (1024, 8192), (2048, 8192), raw=False)],
    ]
    little, much = (make_multi_plan(of_targets, m * MIB, 1) for m in (90, 1024))
    assert [len(read.fills) for read in much.reads] == [2]
    assert much.repeated_bytes == 0
    assert [len(read.fills) for read in little.reads] == [1, 1]
    again = sum(plan.decoded_bytes for plan in little.plans) - little.source_bytes
    assert little.repeated_bytes == again > 0
    assert little.peak_bytes <= 90 * MIB


def test_identical_chunks_are_copied_encoded_to_all_targets_that_keep_them():
    shape, chunk = (4096, 1024), (1024, 1024)
    keep = wanted(shape, chunk, chunk)
    keep = replace(keep, target=replace(keep.target, codec="zstd:1", raw=False))
    plan = make_multi_plan([[keep], [wanted(shape, chunk, (4096, 256))], [keep]], 256 * MIB, 2)
    assert [[at.target for at in read.fills] for read in plan.reads] == [[0, 2], [1]]
    assert [plan.fill(read.fills[0]).strategy for read in plan.reads] == ["copy", "scatter"]


def test_a_tensor_that_one_target_leaves_out_is_shared_by_the_others():
    shape = (1024, 1024)
    a, b = (wanted(shape, (256, 1024), (1024, 256), name=n) for n in "ab")
    plan = make_multi_plan([[a, b], [b], [a]], 256 * MIB, 2)
    shared = {plan.fill(r.fills[0]).piece.source: [at.target for at in r.fills] for r in plan.reads}
    assert shared == {"a": [0, 2], "b": [0, 1]}
    assert [fill.piece.source for fill in plan.plans[0].fills] == ["a", "b"]


def test_what_fits_in_no_way_is_refused_as_alone():
    small = wanted((64, 64), (64, 64), (64, 64))
    huge = wanted((8192, 8192), (8192, 1), (8192, 8192), raw=False)
    with pytest.raises(MemoryBudgetError, match="'w' of shape") as alone:
        make_plan([huge], 32 * MIB, 2)
    with pytest.raises(MemoryBudgetError) as caught:
        make_multi_plan([[small], [huge]], 32 * MIB, 2)
    assert str(caught.value) == str(alone.value)
    smallest = caught.value.smallest_bytes
    assert make_multi_plan([[small], [huge]], smallest, 2).tasks > 0


@given(groups())
def test_units_of_a_read_are_boxes_of_the_tensor(of_targets):
    plan = make_multi_plan(of_targets, 256 * MIB, 2)
    for read in plan.reads:
        units = read.units
        assert units.shape == of_targets[0][0].piece.shape
        assert all(a < b for cuts in units.cuts for a, b in pairs(cuts))


def test_tensors_that_are_planned_alike_keep_their_names():
    """Their plans are made when they are looked at, of one fill of their kind."""
    kinds = [((64, 32), (8, 32)), ((64, 32), (16, 32)), ((128,), (64,))]
    asked = [
        wanted(shape, chunk, shape, name=f"w.{kind}.{number}")
        for number in range(3)
        for kind, (shape, chunk) in enumerate(kinds)
    ]
    plan = make_multi_plan([asked], 256 * MIB, 2)
    (own,) = plan.plans
    for one, tensor in zip(asked, own.tensors, strict=True):
        (fill,) = tensor.fills
        assert (fill.pieces, fill.sources, fill.target) == ((one.piece,), (one.source,), one.target)
        assert tensor == make_plan([one], 256 * MIB, 2).tensors[0]
    assert [tensor.name for tensor in own.unlike] == ["w.0.0", "w.1.0", "w.2.0"]
    assert list(own.prices) == [fill.price for fill in own.fills]
    assert plan.reads == MultiPlan.alone(own).reads
    assert pickle.loads(pickle.dumps(plan)) == plan
