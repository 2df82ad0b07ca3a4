"""From plans to tasks: every unit once, small ones together, large moves first."""

from __future__ import annotations

import itertools
import pickle
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reshard.engine.movers.one_task import _Buffers
from reshard.engine.output import TargetOutput
from reshard.engine.task_stream import BATCH_BYTES, BATCH_TASKS
from reshard.errors import MemoryBudgetError
from reshard.formats.contents import Extent, StoredTensor
from reshard.formats.file_map import Place
from reshard.geometry.grid import Box
from reshard.planning.piece import Piece
from reshard.planning.planner import WantedPiece, make_plan
from reshard.planning.plans import Plan, TensorPlan
from reshard.planning.task_cost import RECORD_BYTES
from tests.engine.stores import (
    RAW,
    RAW_CRC,
    ZSTD,
    Case,
    Folder,
    Store,
    batches,
    cases,
    side,
    tensor,
)
from tests.planning.strategies import wanted_pieces


def tasks_of(case: Case, tmp_path):
    store = Store(tmp_path / "source")
    store.add(case.move.source.spec, case.values, case.source_encoding)
    plan = Plan((TensorPlan((case.move,)),), 64 << 20, 1)
    found = batches(
        plan, store, TargetOutput(Folder(case.packed), {"out/w": case.target_encoding}, "")
    )
    return [task for batch in found for task in batch]


@given(cases(offsets=True))
def test_each_unit_of_work_is_a_task_with_every_chunk_it_touches(tmp_path_factory, case):
    tasks = tasks_of(case, tmp_path_factory.mktemp("t"))
    placement = case.move.piece
    seen = np.zeros(placement.shape, int)
    for task in tasks:
        ((read,), (unit,)) = task.reads, task.units
        ((take,),) = (read.takes,)
        seen[take.box.slices] += 1
        assert {s.index for s in read.chunks} == touching(
            case.move.source.spec, placement.to_source(take.box)
        )
        assert unit.box == placement.to_target(take.box)
        assert {t.index for t in unit.chunks} == touching(case.move.target.spec, unit.box)
        assert len(unit.chunks) == unit.grid.count
        for target, box in zip(unit.chunks, unit.grid.boxes(), strict=True):
            there = box.shift(unit.box.start)
            assert there.intersect(target.box) == there or not there.rank
    assert (seen == 1).all()


def touching(spec, box: Box):
    indices = list(spec.storage.indices())
    return {i for i in indices if not i or spec.storage.box(i).intersect(box)}


@given(cases())
def test_a_task_can_be_sent_to_another_process(tmp_path_factory, case):
    tasks = tasks_of(case, tmp_path_factory.mktemp("t"))
    assert pickle.loads(pickle.dumps(tasks)) == tasks


def planned(sizes, tmp_path):
    """Rows to columns, one float32 tensor of ``n × n`` for each size."""
    store, wanted_pieces = Store(tmp_path / "source"), []
    for number, size in enumerate(sizes):
        source = tensor(f"w{number}", (size, size), (max(1, size // 4), size))
        target = tensor(f"w{number}", (size, size), (size, max(1, size // 4)))
        store.add(source, np.ones((size, size), np.float32), RAW)
        sides = side(source, ZSTD), side(target, RAW_CRC)
        wanted_pieces.append(WantedPiece(Piece.whole(source, target), *sides))
    encodings = {f"w{n}": RAW_CRC for n in range(len(sizes))}
    plan = make_plan(wanted_pieces, 256 << 20, 2)
    return plan, list(batches(plan, store, TargetOutput(Folder(), encodings, "")))


def test_small_tasks_form_batches(tmp_path):
    plan, found = planned([8] * 100, tmp_path)
    assert sum(map(len, found)) == plan.tasks
    assert len(found) == -(-plan.tasks // BATCH_TASKS)


def test_a_batch_ends_when_it_is_heavy_enough(tmp_path):
    _, found = planned([512] * 12, tmp_path)
    for batch in found[:-1]:
        weights = [t.reads[0].box.size * 4 for t in batch]
        assert sum(weights) >= BATCH_BYTES or len(batch) == BATCH_TASKS
        assert sum(weights[:-1]) < BATCH_BYTES


def test_the_largest_moves_come_first(tmp_path):
    plan, found = planned([8, 512, 64, 256], tmp_path)
    decoded = [
        list(plan.fills)[t.units[0].tensor].price.decoded_bytes for batch in found for t in batch
    ]
    assert all(a >= b for a, b in pairwise(decoded))


def test_tensors_without_elements_have_no_tasks(tmp_path):
    store = Store(tmp_path / "source")
    spec = tensor("w", (0, 4), (1, 4))
    store.add(spec, np.zeros((0, 4), np.float32), RAW)
    plan = make_plan(
        [WantedPiece(Piece.whole(spec, spec), side(spec, RAW), side(spec, RAW))], 64 << 20, 1
    )
    assert list(batches(plan, store, TargetOutput(Folder(), {"w": RAW}, ""))) == []


class Everywhere:
    """A reader and writer of nothing: every chunk lies somewhere and has a file."""

    def __init__(self, wanted: WantedPiece) -> None:
        spec = wanted.source.spec
        self.tensors = {spec.name: StoredTensor(spec, ZSTD, bytes(spec.itemsize), False)}

    def locate(self, name, index):  # noqa: ARG002  of the interface
        return Extent(name, 0, 1)

    def places(self, name, index):
        return (Place(f"{name}/{index}"),)


@given(
    wanted_pieces(max_size=1000), st.sampled_from([16 << 20, 64 << 20, 1 << 30]), st.integers(1, 3)
)
def test_no_task_takes_more_buffers_than_its_plan_allows(request_, memory, workers):
    try:
        plan = make_plan([request_], memory, workers)
    except MemoryBudgetError:
        return
    (move,) = list(plan.fills)
    if move.strategy == "copy":
        return
    near = Everywhere(request_)
    tasks = batches(plan, near, TargetOutput(near, {request_.target.spec.name: RAW}, ""))
    for task in itertools.islice(itertools.chain.from_iterable(tasks), 5):
        streams = len(task.reads[0].chunks) if task.strategy == "weave" else 1
        took = _Buffers.of(task).total + streams * move.source.stream_bytes
        took += move.target.stream_bytes if task.strategy == "block" else 0
        took += RECORD_BYTES * (len(task.reads[0].chunks) + len(task.units[0].chunks))
        assert took <= move.price.task_bytes <= memory
