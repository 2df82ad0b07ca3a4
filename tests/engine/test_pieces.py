"""Targets of many pieces and sources that feed many: planned, killed, resumed, and proved against plain numpy."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from reshard.conversion.resume.journal import read_results, record_of
from reshard.engine.books import Books, DoneUnits, TargetRun
from reshard.engine.output import TargetOutput
from reshard.engine.run import run_batches
from reshard.engine.task_stream import task_batches
from reshard.engine.tensor_book import TensorResult
from reshard.errors import PlanError
from reshard.formats.contents import Encoding
from reshard.formats.slices.slice_file import digest_of
from reshard.geometry.box import Box
from reshard.geometry.grid import Grid
from reshard.geometry.view import View
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.multi_plan import MultiPlan
from reshard.planning.piece import Piece
from reshard.planning.planner import Demand, make_multi_plan
from reshard.planning.tensor_plan import Fill, Side
from tests.engine.stores import RAW, RAW_CRC, ZSTD, ZSTD_CRC, Folder, Store, tensor
from tests.equal import assert_same

MIB = 1 << 20
ENCODINGS = pytest.mark.parametrize("encoding", [RAW_CRC, ZSTD_CRC], ids=["in pieces", "assembled"])

pytestmark = pytest.mark.usefixtures("dirty_buffers")


@dataclass
class Conversion:
    """Sources on disk, the pieces of targets, and what plain numpy makes of them."""

    root: Path
    encoding: Encoding

    def __post_init__(self) -> None:
        self.stores = [Store(self.root / f"source{n}") for n in range(2)]
        self.requests: list[Demand] = []
        self.expected: dict[str, np.ndarray] = {}
        self.targets: dict[str, TensorSpec] = {}

    def source(
        self, name: str, shape: Sequence[int], chunk: Sequence[int], checkpoint: int = 0
    ) -> np.ndarray:
        """A source of numbers that all differ."""
        spec = tensor(name, shape, chunk)
        seed = len(self.stores[checkpoint].tensors) + 100 * checkpoint
        values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        self.stores[checkpoint].add(spec, values, ZSTD, recorded=True)
        return values

    def target(self, name: str, values: np.ndarray, chunk: Sequence[int]) -> TensorSpec:
        """A target that must have these values."""
        self.expected[name] = values
        self.targets[name] = tensor(name, values.shape, chunk)
        return self.targets[name]

    def piece(self, piece: Piece, tiles: Sequence[int] | None = None) -> None:
        """One more piece of a target; ``tiles``: the shape of the tiles of the target that units must not cut."""
        target = self.targets[piece.target]
        grid = None if tiles is None else Grid.regular(target.shape, tiles)
        side = Side(target, str(self.encoding), self.encoding.compressor == "none", 1 << 16)
        if piece.fill is not None:
            spec = TensorSpec("", piece.shape, "float32", Grid.whole(piece.shape), piece.shape)
            source = Side(spec, "raw", True, 0)
        else:
            spec = self.stores[piece.checkpoint].tensors[piece.source].spec
            source = Side(spec, "zstd:1", False, 1 << 16)
        self.requests.append(Demand(piece, source, side, tiles=grid))

    def plan(self, memory: int = 64 * MIB) -> MultiPlan:
        return make_multi_plan([self.requests], memory, 2)

    def run(self, plan: MultiPlan, journal: Path, *, dies_after: int = 0) -> list[TensorResult]:
        """Does what the journal does not have; it dies after so many records."""
        folder, encodings = Folder(), dict.fromkeys(self.targets, self.encoding)
        output = TargetOutput(folder, encodings, str(self.root / "t"))
        (alone,) = plan.plans
        books, done = Books(alone, output), DoneUnits(alone)
        lines = journal.read_bytes().splitlines() if journal.exists() else []
        for result in read_results(lines, alone):
            books.take(result)
            done.add(result.tensor, result.unit)
        count = 0

        def record(results) -> None:
            nonlocal count
            with journal.open("a") as file:
                file.write(record_of(results) + "\n")
            count += 1
            if count == dies_after:
                os.kill(os.getpid(), signal.SIGKILL)

        target = TargetRun(output, books, done, record)
        batches = task_batches(plan, self.stores, [target])
        one_by_one = ((task,) for batch in batches for task in batch)
        self.read_bytes = run_batches(one_by_one, [target], alone.max_memory, 1)
        return books.results()

    def killed_and_resumed(self, plan: MultiPlan) -> list[TensorResult]:
        """Killed after its first record, and again after one more, by SIGKILL; the third run ends."""
        journal = self.root / "journal"
        context = multiprocessing.get_context("spawn")
        for _ in range(2):
            child = context.Process(target=self.run, args=(plan, journal), kwargs={"dies_after": 1})
            child.start()
            child.join(60)
            assert child.exitcode == -signal.SIGKILL
        assert len(journal.read_bytes().splitlines()) == 2
        return self.run(plan, journal)

    def check(self, plan: MultiPlan, results: Sequence[TensorResult]) -> None:
        """Every target has every bit, and its digest is the one of its bytes."""
        for tensor_plan, result in zip(plan.plans[0].tensors, results, strict=True):
            name = tensor_plan.name
            found = Folder().read(self.root / "t", self.targets[name], self.encoding)
            assert_same(found, self.expected[name])
            assert result.target_digest == digest_of(found.tobytes())


def moved(
    source: str,
    source_box: Box,
    target: str,
    target_box: Box,
    order: Sequence[int] | None = None,
    **more,
) -> Piece:
    order = tuple(range(source_box.rank)) if order is None else tuple(order)
    return Piece(source, source_box, target, target_box, order, "float32", "float32", **more)


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


def unit_boxes(fill: Fill) -> list[Box]:
    """The boxes of the target that the units of a fill are."""
    if fill.is_joint:
        return [box.shift(fill.box.start) for box in fill.units.boxes()]
    return [box for unit in fill.units.boxes() for box, _ in fill.piece.target_boxes(unit)]


def assert_follows(fill: Fill, tiles: Sequence[int]) -> None:
    """Every unit ends where tiles do, or where its piece does."""
    spec = fill.target.spec
    edges = Grid.regular(spec.shape, tiles).cuts
    for box in unit_boxes(fill):
        for dim, cuts in enumerate(edges):
            ends = {*cuts, fill.box.start[dim], fill.box.stop[dim]}
            assert {box.start[dim], box.stop[dim]} <= ends, (box, cuts)


@ENCODINGS
@pytest.mark.parametrize("turned", [False, True], ids=["in order", "turned"])
@pytest.mark.parametrize(
    ("source_chunk", "tiles"),
    [((8, 1024), (64, 256)), ((96, 256), (64, 256)), ((64, 64), (100, 1024)), ((64, 64), (512, 1024))],
    ids=["rows", "across", "beside", "whole"],
)  # fmt: skip
def test_units_follow_tiles_of_the_target(encoding, turned, source_chunk, tiles, tmp_path):
    """Chunks of source and target end where no tile does, and memory is short: no unit has a part of a tile."""
    made = Conversion(tmp_path, encoding)
    values = made.source("w", (1024, 512) if turned else (512, 1024), source_chunk)
    made.target("t", np.ascontiguousarray(values.T if turned else values), (32, 256))
    order = (1, 0) if turned else (0, 1)
    made.piece(moved("w", Box.full(values.shape), "t", Box.full((512, 1024)), order), tiles)
    plan = made.plan(16 * MIB)
    (fill,) = plan.plans[0].tensors[0].fills
    assert_follows(fill, tiles)
    assert fill.units.count > 1 or source_chunk == (64, 64)
    if source_chunk == (8, 1024) and not turned:
        assert plan.amplification == 1.0
    made.check(plan, made.run(plan, tmp_path / "journal"))


@ENCODINGS
def test_units_of_many_pieces_follow_tiles(encoding, tmp_path):
    """Two sources are joined within a tile; units end with tiles, or where the sources meet."""
    made = Conversion(tmp_path, encoding)
    a, b = made.source("a", (300, 1024), (32, 512)), made.source("b", (340, 1024), (84, 1024))
    made.target("t", np.concatenate([a, b]), (32, 1024))
    made.piece(moved("a", Box.full(a.shape), "t", Box((0, 0), (300, 1024))), (128, 1024))
    made.piece(moved("b", Box.full(b.shape), "t", Box((300, 0), (640, 1024))), (128, 1024))
    plan = made.plan(16 * MIB)
    for fill in plan.plans[0].tensors[0].fills:
        assert fill.units.count > 1 or fill.is_joint
        assert_follows(fill, (128, 1024))
    made.check(plan, made.run(plan, tmp_path / "journal"))


def test_tiles_of_chunks_cost_nothing(tmp_path):
    """Where chunks end with tiles, as much is decoded and as much is written as without tiles."""
    made = Conversion(tmp_path, ZSTD_CRC)
    made.source("w", (512, 1024), (64, 1024))
    made.target("t", np.zeros((512, 1024), np.float32), (128, 1024))
    made.piece(moved("w", Box.full((512, 1024)), "t", Box.full((512, 1024))))
    without = made.plan(16 * MIB)
    made.requests.clear()
    made.piece(moved("w", Box.full((512, 1024)), "t", Box.full((512, 1024))), (128, 1024))
    assert made.plan(16 * MIB) == without


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


@settings(deadline=None, max_examples=60)
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
