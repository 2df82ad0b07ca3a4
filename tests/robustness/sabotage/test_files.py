"""Bytes and chunks at the wrong place in files: the digest of what was written finds every one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reshard.engine.movers import one_task
from reshard.engine.output import TargetOutput
from reshard.engine.write import sinks
from reshard.errors import VerificationError
from reshard.planning.piece import Piece
from reshard.planning.plans import Plan, TensorPlan
from tests.campaigns import singly
from tests.engine.stores import (
    RAW_CRC,
    ZSTD,
    ZSTD_CRC,
    Folder,
    Store,
    batches,
    by_hand,
    run,
    side,
    tensor,
)
from tests.robustness.sabotage.moves import MOVE_CASES, put_defect, strike

RAW_TARGETS = [c for c in MOVE_CASES if c.strategy != "block"]


pytestmark = pytest.mark.usefixtures("dirty_buffers")


def one_run_on(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    (offset, nbytes), *rest = places
    return [(offset + 4, nbytes), *rest]


def middle_run_back(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    half = len(places) // 2
    offset, nbytes = places[half]
    return [*places[:half], (offset - 4, nbytes), *places[half + 1 :]]


def all_a_row_on(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(offset + 24, nbytes) for offset, nbytes in places]


def one_run_lost(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return places[:-1] or [(0, 0)]


@pytest.mark.parametrize(
    ("case", "defect"),
    singly(RAW_TARGETS, [one_run_on, middle_run_back, all_a_row_on, one_run_lost]),
)
def test_runs_of_bytes_in_the_wrong_place(case, defect, make, monkeypatch):
    def arm(patch, n):
        return put_defect(patch, sinks, "runs", n, lambda original, *args: defect(original(*args)))

    assert strike(monkeypatch, make(case), arm) > 0


@pytest.mark.parametrize("case", [c for c in MOVE_CASES if c.strategy == "block"], ids=str)
@pytest.mark.parametrize("wrong", ["elements", "target"])
def test_a_chunk_that_is_stored_as_another(case, wrong, make, monkeypatch):
    """A chunk gets the first one's elements, or lies in the first one's place."""

    def arm(patch, n):
        first: list[Any] = []

        def act(original, task, target, data, output):
            if wrong == "target":
                return original(task, first[0][0], data, output)
            return original(task, target, first[0][1], output)

        def note(original, task, target, data, output):
            first.append((target, data.copy()))
            return original(task, target, data, output)

        put_defect(patch, sinks, "store_chunk", 1, note)
        return put_defect(patch, sinks, "store_chunk", n + 1, act)

    assert strike(monkeypatch, make(case), arm) > 0


@pytest.mark.parametrize("target", [RAW_CRC, ZSTD_CRC], ids=["raw", "zstd"])
@pytest.mark.parametrize("wrong", ["place", "elements", "zeros"])
def test_small_chunks_that_change_places(target, wrong, tmp_path, monkeypatch):
    """Chunks that are moved whole: two get each other's place, or one the other's elements."""
    spec = tensor("w", (8, 6), (2, 6))
    numbers = np.arange(48, dtype=np.float32).reshape(8, 6)
    numbers[2:6] = 0
    store = Store(tmp_path / "source")
    store.add(spec, numbers, ZSTD)
    sides = side(spec, ZSTD), side(spec, target)
    move = by_hand(Piece.whole(spec, spec), *sides, "whole", spec.storage, 48)
    plan = Plan((TensorPlan((move,)),), 64 << 20, 1)
    output = TargetOutput(Folder(), {"w": target}, str(tmp_path / "t"))
    tasks = [t for b in batches(plan, store, output) for t in b]
    swap = (1, 3) if wrong == "zeros" else (0, 3)
    original = one_task.store_chunk

    def store_wrongly(task, chunk, data, output_):
        if chunk.index[0] in swap:
            other = tasks[swap[0] + swap[1] - chunk.index[0]].units[0].chunks[0]
            if wrong == "elements":
                data = np.full_like(data, 7)
            elif chunk.index[0] == swap[0]:
                chunk = other
        return original(task, chunk, data, output_)

    monkeypatch.setattr(one_task, "store_chunk", store_wrongly)
    with pytest.raises(VerificationError, match=r"^'w': "):
        run(plan, [tuple(tasks)], output)


def test_chunks_that_are_copied_as_each_other(tmp_path, monkeypatch):
    """No element is seen where chunks travel encoded, so that at least their names are compared."""
    spec = tensor("w", (8, 6), (2, 6))
    store = Store(tmp_path / "source")
    store.add(spec, np.arange(48, dtype=np.float32).reshape(8, 6), ZSTD)
    both = side(spec, ZSTD)
    move = by_hand(Piece.whole(spec, spec), both, both, "copy", spec.storage, 1)
    plan = Plan((TensorPlan((move,)),), 64 << 20, 1)
    output = TargetOutput(Folder(), {"w": ZSTD}, str(tmp_path / "t"))
    original = one_task.pass_to_all

    def swapped(task, files, outputs):
        from msgspec.structs import replace

        (read,) = task.reads
        moved = (replace(read.chunks[0], index=(1, 0)), *read.chunks[1:])
        return original(replace(task, reads=(replace(read, chunks=moved),)), files, outputs)

    monkeypatch.setattr(one_task, "pass_to_all", swapped)
    with pytest.raises(
        VerificationError,
        match=r"^'w': chunk \[1, 0\] of the source was to be copied as chunk \[0, 0\]; this is a defect",
    ):
        run(plan, batches(plan, store, output), output)


def test_a_copy_that_stops_early(tmp_path, monkeypatch):
    spec = tensor("w", (8, 6), (2, 6))
    store = Store(tmp_path / "source")
    store.add(spec, np.arange(48, dtype=np.float32).reshape(8, 6), ZSTD)
    both = side(spec, ZSTD)
    move = by_hand(Piece.whole(spec, spec), both, both, "copy", spec.storage, 1)
    plan = Plan((TensorPlan((move,)),), 64 << 20, 1)
    output = TargetOutput(Folder(), {"w": ZSTD}, str(tmp_path / "t"))
    from reshard.engine.movers import passthrough

    monkeypatch.setattr(passthrough, "copy_range", lambda *_, **__: None)
    with pytest.raises(
        VerificationError,
        match=r"^tensor 'w', chunk \[0, 0\]: '.*' has 0 bytes after \d+ were copied",
    ):
        run(plan, batches(plan, store, output), output)
