"""Pieces and tasks in the wrong place: the digest of what was written finds every one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from reshard.engine.output import TargetOutput
from reshard.engine.write.sinks import ChunkSlots, Slot
from reshard.errors import VerificationError
from reshard.planning.plans import Plan, TensorPlan
from tests.campaigns import singly
from tests.engine.stores import Folder, batches, run
from tests.robustness.sabotage.moves import MOVE_CASES, Nth, moving, put_defect, strike

pytestmark = pytest.mark.usefixtures("dirty_buffers")


@pytest.mark.parametrize("case", MOVE_CASES, ids=str)
def test_without_a_defect_all_is_well(case, make):
    move = make(case)(0)
    result = move.run()
    np.testing.assert_array_equal(move.found(), move.expected)
    assert case.change != "none" or result.source_digest == result.target_digest


Pieces = list[Slot]


def swapped_elements(pieces: Pieces) -> Pieces:
    """Two pieces get each other's elements."""
    a, b, *rest = pieces
    return [a._replace(in_band=b.in_band), b._replace(in_band=a.in_band), *rest]


def swapped_chunks(pieces: Pieces) -> Pieces:
    """Two pieces of one shape go to each other's chunks."""
    a, b, *rest = pieces
    return [a._replace(number=b.number), b._replace(number=a.number), *rest]


def dropped(pieces: Pieces) -> Pieces:
    return pieces[1:]


def last_dropped(pieces: Pieces) -> Pieces:
    return pieces[:-1]


def twice(pieces: Pieces) -> Pieces:
    return [pieces[0], *pieces]


def over_another(pieces: Pieces) -> Pieces:
    """The first piece's elements lie over the second's as well; nothing else is lost."""
    a, b, *_ = pieces
    return [*pieces, b._replace(in_band=a.in_band)]


def in_place_of_another(pieces: Pieces) -> Pieces:
    """The first is written again where it is, the second never."""
    a, _, *rest = pieces
    return [a, a, *rest]


def other_row(pieces: Pieces) -> Pieces:
    return [_moved(pieces[0], 0), *pieces[1:]]


def other_element(pieces: Pieces) -> Pieces:
    return [_moved(pieces[0], -1), *pieces[1:]]


def all_other_row(pieces: Pieces) -> Pieces:
    return [_moved(p, 0) for p in pieces]


def _moved(piece: Slot, axis: int) -> Slot:
    start = list(piece.start)
    start[axis] += -1 if start[axis] else 1
    return piece._replace(start=tuple(start))


CUTS = [
    swapped_elements, swapped_chunks, dropped, last_dropped, twice, over_another,
    in_place_of_another, other_row, other_element, all_other_row,
]  # fmt: skip


@pytest.mark.parametrize(("case", "defect"), singly(MOVE_CASES, CUTS))
def test_pieces_in_the_wrong_place(case, defect, make, monkeypatch):
    caught = strike(monkeypatch, make(case), lambda patch, n: _cut_wrong(patch, defect, n))
    # In a chunk that is held in memory, or among gathered bands, the same elements twice are no defect.
    assert caught > 0 or (defect is twice and (case.strategy == "block" or case.gathered))


def _cut_wrong(patch: Any, defect: Callable[[Pieces], Pieces], n: int) -> Nth:
    def act(original: Any, *args: Any) -> Iterator[Slot]:
        pieces = list(original(*args))
        return iter(defect(pieces) if len(pieces) > 1 else pieces)

    return put_defect(patch, ChunkSlots, "slots", n, act)


@pytest.mark.parametrize(("case", "number"), singly(MOVE_CASES, range(2)))
def test_a_chunk_that_is_never_filled_nor_summed_up(case, number, make, monkeypatch):
    """Whatever is dropped is dropped each time; where it is zeros, no digest misses it."""
    original = ChunkSlots.slots

    def without(chunk_slots, box):
        return (p for p in original(chunk_slots, box) if p.number != number)

    monkeypatch.setattr(ChunkSlots, "slots", without)
    with pytest.raises(VerificationError, match="'w': "):
        make(case)(0).run()


@pytest.mark.parametrize("case", MOVE_CASES, ids=str)
def test_a_task_done_twice_in_place_of_another(case, tmp_path):
    """Twice the same takes itself away from a digest, and amounts are as they should be."""
    move = moving(case, tmp_path)
    output = TargetOutput(Folder(), {"w": case.target}, str(move.root))
    plan = Plan((TensorPlan((move.move,)),), 64 << 20, case.workers)
    first, _, *rest = [(t,) for b in batches(plan, move.store, output) for t in b]
    with pytest.raises(VerificationError, match=r"^'w': "):
        run(plan, [first, first, *rest], output)
