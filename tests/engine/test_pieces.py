"""Targets of many pieces and sources that feed many: planned, killed, resumed, and proved against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from reshard.errors import PlanError
from reshard.formats.slices.slice_file import digest_of
from reshard.geometry.grid import Box
from reshard.geometry.view import View
from reshard.planning.piece import Piece
from tests.engine.pieces import ENCODINGS, MIB, Conversion, moved
from tests.engine.stores import RAW, RAW_CRC, ZSTD_CRC

pytestmark = pytest.mark.usefixtures("dirty_buffers")


@ENCODINGS
def test_one_target_from_three_sources_in_two_checkpoints(encoding, tmp_path):
    """q, k and v are fused; chunks of 10 rows have rows of two of them."""
    made = Conversion(tmp_path, encoding)
    q = made.source("q", (16, 24), (8, 12))
    k = made.source("k", (8, 24), (8, 24), checkpoint=1)
    v = made.source("v", (24, 8), (5, 8))
    made.target("qkv", np.concatenate([q, k, v.T]), (10, 24))
    made.piece(moved("q", Box.full(q.shape), "qkv", Box((0, 0), (16, 24))))
    made.piece(moved("k", Box.full(k.shape), "qkv", Box((16, 0), (24, 24)), checkpoint=1))
    made.piece(moved("v", Box.full(v.shape), "qkv", Box((24, 0), (32, 24)), (1, 0)))
    plan = made.plan()
    (fused,) = plan.plans[0].tensors
    assert len(fused.fills) == (3 if encoding is RAW_CRC else 1)
    results = (
        made.killed_and_resumed(plan) if fused.unit_count > 2 else made.run(plan, tmp_path / "j")
    )
    made.check(plan, results)
    assert results[0].source_digest is None
    assert results[0].moved_bytes == made.expected["qkv"].nbytes


@ENCODINGS
def test_one_source_into_eighty_targets_is_decoded_once(encoding, tmp_path):
    """Eighty layers lie in each chunk of the source; each becomes a tensor of its own."""
    made = Conversion(tmp_path, encoding)
    values = made.source("layers", (80, 12, 16), (80, 12, 4))
    for layer in range(80):
        made.target(f"layer{layer}", values[layer : layer + 1].reshape(1, 12, 16), (1, 12, 4))
        box = Box((layer, 0, 0), (layer + 1, 12, 16))
        made.piece(moved("layers", box, f"layer{layer}", Box.full((1, 12, 16))))
    plan = made.plan()
    assert len(plan.reads) == 1
    assert plan.amplification == plan.plans[0].amplification == 1.0
    results = made.killed_and_resumed(plan)
    made.check(plan, results)
    whole = digest_of(np.ascontiguousarray(values).tobytes())
    assert {result.source_digest for result in results} == {whole}
    # What the killed runs read is not read again.
    assert made.read_bytes < (tmp_path / "source0").stat().st_size
    assert sum(result.read_bytes for result in results) == sum(
        extent.length for extent in made.stores[0].extents.values() if extent
    )


@ENCODINGS
@pytest.mark.parametrize("chunk", [(24, 5), (16, 5), (7, 5)], ids=["heads", "rows", "neither"])
def test_a_split_dimension_is_turned(encoding, chunk, tmp_path):
    """(h p two) e → e (h two p): RoPE pairs become halves, whether chunks end with heads or within them."""
    made = Conversion(tmp_path, encoding)
    values = made.source("w", (24, 10), chunk)
    split = View.of((24, 10), (3, 4, 2), (10,))
    joined = View.of((10, 24), (10,), (3, 2, 4))
    expected = values.reshape(3, 4, 2, 10).transpose(3, 0, 2, 1).reshape(10, 24)
    made.target("t", np.ascontiguousarray(expected), (4, 9))
    full = Box.full(split.shape)
    made.piece(
        moved(
            "w",
            full,
            "t",
            Box.full(joined.shape),
            (3, 0, 2, 1),
            source_view=split,
            target_view=joined,
        )
    )
    plan = made.plan()
    results = made.run(plan, tmp_path / "journal")
    made.check(plan, results)
    assert results[0].source_digest == digest_of(values.tobytes())


@ENCODINGS
def test_a_fill_pads_a_vocabulary(encoding, tmp_path):
    made = Conversion(tmp_path, encoding)
    values = made.source("embed", (30, 8), (6, 8))
    padded = np.full((64, 8), 1.5, np.float32)
    padded[:30] = values
    target = made.target("embed", padded, (8, 8))
    made.piece(moved("embed", Box.full((30, 8)), "embed", Box((0, 0), (30, 8))))
    made.piece(Piece.filled(target, Box((30, 0), (64, 8)), np.float32(1.5).tobytes()))
    plan = made.plan(32 * MIB)
    results = made.run(plan, tmp_path / "journal")
    made.check(plan, results)
    assert results[0].source_digest == digest_of(values.tobytes())


def test_pieces_that_leave_a_hole_or_overlap_are_refused(tmp_path):
    made = Conversion(tmp_path, RAW)
    made.source("a", (4, 4), (4, 4))
    made.target("t", np.zeros((8, 4), np.float32), (4, 4))
    made.piece(moved("a", Box.full((4, 4)), "t", Box((0, 0), (4, 4))))
    with pytest.raises(PlanError, match=r"would be filled only from 'a' in \[0:4, 0:4\]; a tensor"):
        made.plan()
    made.piece(moved("a", Box.full((4, 4)), "t", Box((2, 0), (6, 4))))
    made.piece(moved("a", Box((0, 0), (2, 4)), "t", Box((6, 0), (8, 4))))
    with pytest.raises(PlanError, match=r"in \[0:4, 0:4\] and from 'a' in \[2:6, 0:4\]; every"):
        made.plan()


def test_a_piece_outside_of_its_target_is_refused(tmp_path):
    made = Conversion(tmp_path, RAW)
    made.source("a", (4, 4), (4, 4))
    made.target("t", np.zeros((8, 4), np.float32), (4, 4))
    made.piece(moved("a", Box.full((4, 4)), "t", Box((6, 0), (10, 4))))
    with pytest.raises(
        PlanError, match=r"from 'a' in \[6:10, 0:4\], which reaches outside of it: give"
    ):
        made.plan()


@ENCODINGS
@pytest.mark.parametrize("memory", [16 * MIB, 12 * MIB], ids=["shared", "apart"])
@pytest.mark.parametrize(
    "chunk", [(100, 256), (40, 256), (1024, 16)], ids=["rows", "small", "columns"]
)
def test_chunks_that_end_within_a_row_of_a_view_are_planned_as_they_are_read(
    encoding, memory, chunk, tmp_path
):
    """Sixteen heads of 64 rows become tensors of their own: what is decoded twice is in the plan."""
    made = Conversion(tmp_path, encoding)
    values = made.source("w", (1024, 256), chunk)
    view = View.of((1024, 256), (16, 64), (256,))
    for head in range(16):
        found = np.ascontiguousarray(values[head * 64 :][:64][None])
        made.target(f"t{head}", found, (1, 32, 256))
        box = Box((head, 0, 0), (head + 1, 64, 256))
        made.piece(moved("w", box, f"t{head}", Box.full(found.shape), source_view=view))
    plan = made.plan(memory)
    if encoding is RAW_CRC:
        assert len(plan.reads) == 1
        assert plan.amplification == 1.0
    made.check(plan, made.run(plan, tmp_path / "journal"))
    stored = sum(extent.length for extent in made.stores[0].extents.values() if extent)
    assert made.read_bytes / stored == pytest.approx(plan.amplification, rel=0.05)


@pytest.mark.parametrize("memory", [16 * MIB, 9 * MIB])
def test_chunks_between_the_rows_of_a_unit_are_not_read(memory, tmp_path):
    """Heads are turned into chunks of the target; a unit wants a part of each head, and few chunks."""
    made = Conversion(tmp_path, ZSTD_CRC)
    values = made.source("w", (2048, 512), (20, 512))
    split = View.of((2048, 512), (16, 128), (512,))
    joined = View.of((2048, 512), (128, 16), (512,))
    expected = values.reshape(16, 128, 512).transpose(1, 0, 2).reshape(2048, 512)
    made.target("t", np.ascontiguousarray(expected), (256, 512))
    full, turned = Box.full(split.shape), Box.full(joined.shape)
    made.piece(moved("w", full, "t", turned, (1, 0, 2), source_view=split, target_view=joined))
    plan = made.plan(memory)
    made.check(plan, made.run(plan, tmp_path / "journal"))
    stored = sum(extent.length for extent in made.stores[0].extents.values() if extent)
    units = plan.plans[0].tensors[0].unit_count
    assert units == 1 or plan.amplification < 0.75 * units
    assert made.read_bytes / stored == pytest.approx(plan.amplification, rel=0.05)


@st.composite
def tilings(draw: st.DrawFn):
    """A target that is cut in two, each half from a box of some source, with views, orders and chunks at random."""
    heads, inner, columns = (draw(st.integers(1, 5)) for _ in range(3))
    cut = draw(st.integers(0, heads))
    chunks = [draw(st.integers(1, heads * inner + 2)) for _ in range(3)]
    width = draw(st.integers(1, columns))
    return heads, inner, columns, cut, chunks, width, draw(st.sampled_from((RAW_CRC, ZSTD_CRC)))


@given(tilings())
def test_random_tilings_arrive_bit_for_bit(tmp_path_factory, case):
    heads, inner, columns, cut, chunks, width, encoding = case
    made = Conversion(tmp_path_factory.mktemp("t"), encoding)
    rows = heads * inner
    split = View.of((rows, columns), (heads, inner), (columns,))
    joined = View.of((rows, columns), (inner, heads), (columns,))
    sources = [
        made.source(name, (rows, columns), (chunks[n], width)) for n, name in enumerate("ab")
    ]
    turned = [values.reshape(heads, inner, columns).transpose(1, 0, 2) for values in sources]
    expected = np.concatenate([turned[0][:, :cut], turned[1][:, cut:]], axis=1)
    made.target("t", np.ascontiguousarray(expected.reshape(rows, columns)), (chunks[2], width))
    for name, first, last in (("a", 0, cut), ("b", cut, heads)):
        if first < last:
            box = Box((first, 0, 0), (last, inner, columns))
            place = Box((0, first, 0), (inner, last, columns))
            made.piece(
                moved(name, box, "t", place, (1, 0, 2), source_view=split, target_view=joined)
            )
    plan = made.plan()
    note(str((case, plan.plans[0].fills)))
    made.check(plan, made.run(plan, made.root / "journal"))
