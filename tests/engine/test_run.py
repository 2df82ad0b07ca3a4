"""Runs catch what goes wrong inside them: pieces swapped, dropped, shifted or written twice."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from reshard.engine.books import Books, DoneUnits, TargetRun
from reshard.engine.movers import one_task
from reshard.engine.output import TargetOutput
from reshard.engine.run import run_batches
from reshard.engine.write.sinks import ChunkSink, PieceSink
from reshard.errors import VerificationError
from reshard.geometry.grid import Grid
from reshard.planning.piece import Piece
from reshard.planning.plans import Plan, TensorPlan
from tests.engine.stores import (
    RAW,
    RAW_CRC,
    ZSTD,
    Folder,
    Store,
    batches,
    by_hand,
    carry_out,
    run,
    side,
    tensor,
)
from tests.equal import assert_same

SHAPE = (32, 24)
SINKS = {"scatter": "PieceSink", "weave": "PieceSink", "block": "ChunkSink"}


pytestmark = pytest.mark.usefixtures("dirty_buffers")


@pytest.fixture
def moving(tmp_path):
    """A move of each strategy from one store, carried out by ``moving(strategy)``."""
    source, target = tensor("w", SHAPE, (8, 12)), tensor("w", SHAPE, (16, 8))
    values = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    store = Store(tmp_path / "source")
    store.add(source, values, ZSTD)
    units = {
        "scatter": source.storage,
        "weave": Grid(SHAPE, (source.storage.cuts[0], (0, 24))),
        "block": Grid.whole(SHAPE),
    }

    def carry(strategy):
        sides = side(source, ZSTD), side(target, RAW_CRC)
        move = by_hand(Piece.whole(source, target), *sides, strategy, units[strategy], 100)
        (result,) = carry_out([move], store, tmp_path / strategy, Folder(), {"w": RAW_CRC}, 1)
        assert_same(Folder().read(tmp_path / strategy, target, RAW_CRC), values)
        return result

    return carry


class Swapped:
    """The elements of two pieces change places."""

    def put(self, piece, band, box):
        rows = band.copy()
        rows[..., 0], rows[..., 1] = band[..., 1], band[..., 0]
        super().put(piece, rows, box)


class Shifted:
    """Everything lies a row lower, as far as there is one."""

    def put(self, piece, band, box):
        rows = np.roll(band, 1, axis=1)
        super().put(piece, rows, box)


class Dropped:
    """A piece never arrives."""

    count = 0

    def put(self, piece, band, box):
        self.count += 1
        if self.count != 3:
            super().put(piece, band, box)


class Again:
    """A piece arrives again in place of the next."""

    last = None

    def put(self, piece, band, box):
        if self.last is not None and self.last[0].shape == band.shape:
            super().put(piece, *self.last)
            self.last = None
        else:
            super().put(piece, band, box)
            self.last = (band.copy(), box)


class Repeated:
    """A piece is written twice."""

    def put(self, piece, band, box):
        super().put(piece, band, box)
        super().put(piece, band, box)


class Flipped:
    """One bit changes on the way."""

    def put(self, piece, band, box):
        wrong = band.copy()
        wrong.reshape(-1).view("u1")[0] ^= 1
        super().put(piece, wrong, box)


@pytest.mark.parametrize("strategy", SINKS)
def test_without_defects_nothing_is_caught(moving, strategy):
    result = moving(strategy)
    assert result.source_digest == result.target_digest


@pytest.mark.parametrize("strategy", SINKS)
@pytest.mark.parametrize("defect", [Swapped, Shifted, Dropped, Again, Flipped])
def test_a_defect_inside_the_sink_is_caught(moving, monkeypatch, strategy, defect):
    sink = {"PieceSink": PieceSink, "ChunkSink": ChunkSink}[SINKS[strategy]]
    monkeypatch.setattr(one_task, SINKS[strategy], type("Broken", (defect, sink), {}))
    with pytest.raises(
        VerificationError,
        match=r"'w': (what was written has digest|\d of 6 chunks were|not every element was)",
    ):
        moving(strategy)


@pytest.mark.parametrize("strategy", ["scatter", "weave"])
def test_a_piece_that_is_written_twice_is_caught(moving, monkeypatch, strategy):
    """In a block a second time changes nothing, since chunks are summed when they are complete."""
    monkeypatch.setattr(one_task, "PieceSink", type("Broken", (Repeated, PieceSink), {}))
    with pytest.raises(VerificationError, match="'w': "):
        moving(strategy)


def test_a_move_that_lacks_a_task_is_caught(tmp_path):
    spec = tensor("w", (8, 4), (2, 4))
    store = Store(tmp_path / "source")
    store.add(spec, np.ones((8, 4), np.float32), RAW)
    move = by_hand(
        Piece.whole(spec, spec), side(spec, RAW), side(spec, RAW), "scatter", spec.storage, 64
    )
    plan = Plan((TensorPlan((move,)),), 64 << 20, 1)
    output = TargetOutput(Folder(), {"w": RAW}, str(tmp_path / "t"))
    (batch,) = batches(plan, store, output)
    with pytest.raises(
        VerificationError,
        match=r"'w': 3 of 4 chunks were completed and 96 of 128 bytes moved; this is a defect of the program",
    ):
        run(plan, [batch[:-1]], output)


@pytest.mark.parametrize("strategy", SINKS)
def test_chunks_at_the_edge_are_padded_with_zeros(tmp_path, strategy):
    source, target = tensor("w", SHAPE, (8, 12)), tensor("w", SHAPE, (20, 10))
    values = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    store = Store(tmp_path / "source")
    store.add(source, values, RAW)
    sides = side(source, RAW), side(target, RAW)
    units = {"weave": Grid(SHAPE, (source.storage.cuts[0], (0, 24))), "block": Grid.whole(SHAPE)}
    grid = units.get(strategy, source.storage)
    move = by_hand(Piece.whole(source, target), *sides, strategy, grid, 100)
    carry_out([move], store, tmp_path / "target", Folder(), {"w": RAW}, 1)
    assert_same(Folder().read(tmp_path / "target", target, RAW), values)


@pytest.mark.parametrize("strategy", SINKS)
def test_what_casts_lose_is_added_up_over_all_tasks(tmp_path, strategy):
    source, target = tensor("w", SHAPE, (8, 12)), tensor("w", SHAPE, (16, 24), "float16")
    values = np.ones(SHAPE, np.float32)
    values[0, 0] = values[9, 0] = 1e6  # too large, in the first task and in a later one
    values[20, 3] = np.nan
    store = Store(tmp_path / "source")
    store.add(source, values, RAW)
    sides, whole = (side(source, RAW), side(target, RAW)), (0, 24)
    units = {"weave": (source.storage.cuts[0], whole), "block": ((0, 16, 32), whole)}
    grid = Grid(SHAPE, units.get(strategy, source.storage.cuts))
    move = by_hand(Piece.whole(source, target), *sides, strategy, grid, 100)
    (result,) = carry_out([move], store, tmp_path / "target", Folder(), {"w": RAW}, 1)
    assert (result.cast.overflows, result.cast.nans) == (2, 1)


def test_a_task_that_is_carried_out_twice_counts_once(tmp_path):
    """As executors do whose workers go away."""
    spec = tensor("w", (8, 4), (2, 4))
    values = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    store = Store(tmp_path / "source")
    store.add(spec, values, RAW)
    sides = side(spec, RAW), side(spec, RAW)
    move = by_hand(Piece.whole(spec, spec), *sides, "scatter", spec.storage, 64)
    plan = Plan((TensorPlan((move,)),), 64 << 20, 1)
    output = TargetOutput(Folder(), {"w": RAW}, str(tmp_path / "t"))
    books, recorded = Books(plan, output), []
    target = TargetRun(output, books, DoneUnits(plan), lambda done: recorded.extend(done))
    (batch,) = batches(plan, store, output)
    run_batches([batch, batch[1:3]], [target], plan.max_memory, plan.workers)
    (result,) = books.results()
    assert result.moved_bytes == values.nbytes
    assert [task.unit for task in recorded] == [0, 1, 2, 3]
    assert_same(Folder().read(tmp_path / "t", spec, RAW), values)


def test_chunks_are_closed_before_their_tasks_are_recorded(tmp_path):
    """A run that resumes counts on the trailer of a chunk of which every task is recorded."""
    source, target = tensor("w", SHAPE, (8, 12)), tensor("w", SHAPE, SHAPE)
    values = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    store = Store(tmp_path / "source")
    store.add(source, values, RAW)
    sides = side(source, RAW), side(target, RAW_CRC)
    move = by_hand(Piece.whole(source, target), *sides, "scatter", source.storage, 100)
    plan = Plan((TensorPlan((move,)),), 64 << 20, 1)
    output = TargetOutput(Folder(), {"w": RAW_CRC}, str(tmp_path / "t"))
    found = []

    def record(_):
        found.append(Folder().read(tmp_path / "t", target, RAW_CRC))  # checks the trailer

    run_batches(
        batches(plan, store, output),
        [TargetRun(output, Books(plan, output), None, record)],
        plan.max_memory,
        plan.workers,
    )
    assert len(found) == 1
    assert_same(found[0], values)


def test_tasks_run_in_other_processes(tmp_path):
    spec, turned = tensor("w", (8, 4), (2, 4)), tensor("w", (8, 4), (8, 1))
    values = np.arange(32, dtype=np.float32).reshape(8, 4)
    store, folder, seen = Store(tmp_path / "source"), Folder(), []
    store.add(spec, values, RAW)
    move = by_hand(
        Piece.whole(spec, turned),
        side(spec, RAW),
        side(turned, RAW_CRC),
        "scatter",
        spec.storage,
        64,
    )
    plan = Plan((TensorPlan((move,)),), 64 << 20, 2)
    output = TargetOutput(folder, {"w": RAW_CRC}, str(tmp_path / "t"))
    tasks = [(t,) for b in batches(plan, store, output) for t in b]
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        run(plan, tasks, output, executor, seen.append)
    assert_same(folder.read(tmp_path / "t", turned, RAW_CRC), values)
    assert [(p.tasks_done, p.moved_bytes, p.total_bytes) for p in seen] == [
        (n, 32 * n, 128) for n in range(1, 5)
    ]


def test_a_plan_is_summed_up_once_however_many_tasks_end(tmp_path, monkeypatch):
    """Its number of tasks is a sum over all moves: asked for at each task it made 10,000 tensors slow."""
    asked, spec = [], tensor("w", (64, 4), (2, 4))
    tasks = Plan.tasks.fget
    monkeypatch.setattr(Plan, "tasks", property(lambda plan: asked.append(1) or tasks(plan)))
    store = Store(tmp_path / "source")
    store.add(spec, np.ones((64, 4), np.float32), RAW)
    sides = side(spec, RAW), side(spec, RAW)
    move = by_hand(Piece.whole(spec, spec), *sides, "scatter", spec.storage, 64)
    plan, seen = Plan((TensorPlan((move,)),), 64 << 20, 1), []
    output = TargetOutput(Folder(), {"w": RAW}, str(tmp_path / "t"))
    tasks_of_plan = list(batches(plan, store, output))
    asked.clear()
    run(plan, tasks_of_plan, output, progress=seen.append)
    assert [p.tasks for p in seen] == [32] * 32
    assert len(asked) == 1
