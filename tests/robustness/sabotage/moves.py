"""A move of each strategy, over tensors with zeros in them, for defects to be put into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reshard.answers.shared import Strategy
from reshard.conversion.prove import check_sources
from reshard.engine.books import TensorResult
from reshard.engine.limits import Limits
from reshard.engine.output import TargetOutput
from reshard.errors import VerificationError
from reshard.formats.contents import Encoding
from reshard.geometry.grid import Box, Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece
from reshard.planning.plans import Fill, Plan, TensorPlan
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

SHAPE = (32, 24)


@dataclass(frozen=True)
class MoveCase:
    """One move to test: strategy, how both ends are stored, what changes, how many workers.

    Attributes:
        recorded: whether the source recorded its digest.
        columns: width of the target's chunks; the source's are 12 wide.
        at_once: whether source chunks are decoded at once.
        gathered: bytes of turned bands that are gathered before they are written.
    """

    strategy: Strategy
    source: Encoding
    target: Encoding
    change: str = "none"
    workers: int = 1
    recorded: bool = False
    columns: int = 6
    at_once: bool = False
    gathered: int = 0

    def __str__(self) -> str:
        """For the names of tests."""
        ends = "-".join(e.compressor for e in (self.source, self.target))
        known = f"-recorded-{self.columns}" if self.recorded else ""
        pace = "-at-once" if self.at_once else f"-gathered-{self.gathered}" if self.gathered else ""
        return f"{self.strategy}-{ends}-{self.change}-{self.workers}{known}{pace}"


MOVE_CASES = [
    MoveCase("scatter", ZSTD, RAW_CRC),
    MoveCase("scatter", RAW_CRC, RAW_CRC, workers=4),
    MoveCase("scatter", ZSTD, RAW_CRC, "cast", 4),
    MoveCase("scatter", ZSTD, RAW_CRC, "turned"),
    MoveCase("scatter", ZSTD, RAW_CRC, "turned", workers=4, gathered=400),
    MoveCase("scatter", RAW_CRC, RAW_CRC, "turned", gathered=200),
    MoveCase("weave", ZSTD, RAW_CRC, workers=4),
    MoveCase("weave", RAW_CRC, RAW_CRC, "cast"),
    MoveCase("scatter", ZSTD, RAW_CRC, at_once=True),
    MoveCase("weave", ZSTD, RAW_CRC, workers=4, at_once=True),
    MoveCase("weave", ZSTD, RAW_CRC, recorded=True, columns=8, at_once=True),
    MoveCase("block", ZSTD, RAW_CRC, workers=4),
    MoveCase("block", ZSTD, ZSTD_CRC),
    MoveCase("block", RAW_CRC, ZSTD_CRC, "cast"),
    MoveCase("block", ZSTD, RAW_CRC, "turned"),
    MoveCase("scatter", ZSTD, RAW_CRC, recorded=True),
    MoveCase("weave", RAW_CRC, RAW_CRC, recorded=True),
    MoveCase("weave", RAW_CRC, RAW_CRC, workers=4, recorded=True, columns=8),
    MoveCase("weave", RAW_CRC, RAW_CRC, "cast", recorded=True),
    MoveCase("block", ZSTD, ZSTD_CRC, recorded=True),
]

APART = {
    columns: MoveCase("weave", RAW_CRC, RAW_CRC, recorded=True, columns=columns)
    for columns in (8, 12, 24)
}
"""Moves in which pieces are taken from bands that stay apart: parts of bands, one band, all of them."""


def values() -> np.ndarray:
    """Random numbers, with a stripe of zeros: they add nothing to a digest.

    It is one task's: where several run at once, any call may be in it, and two pieces of zeros that
    are swapped are no defect.
    """
    found = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    found[8:16, :12] = 0
    return found


@dataclass(frozen=True)
class Moving:
    """A move that can be carried out."""

    case: MoveCase
    move: Fill
    store: Store
    root: Path

    def run(self) -> TensorResult:
        """Carries it out and compares it with what was recorded; raises what the engine raises."""
        encodings = {"w": self.case.target}
        output = TargetOutput(Folder(), encodings, str(self.root))
        plan = Plan((TensorPlan((self.move,)),), 64 << 20, self.case.workers)
        # One task to a batch, so that several workers have something to do.
        tasks = [(t,) for b in batches(plan, self.store, output) for t in b]
        (result,) = run(plan, tasks, output)
        seen = {(0, "w"): result.source_digest} if result.source_digest else {}
        check_sources(plan, self.store, seen, {}, Limits(64 << 20, 1))
        return result

    def found(self) -> np.ndarray:
        return Folder().read(self.root, self.move.target.spec, self.case.target)

    @property
    def expected(self) -> np.ndarray:
        moved = values().transpose(self.move.piece.axis_order)
        return moved.astype(self.move.piece.target_dtype)


def moving(case: MoveCase, folder: Path) -> Moving:
    """The move of ``case`` between files below ``folder``."""
    source = tensor("w", SHAPE, (8, 12))
    placement, target = _placement(case, source)
    store = Store(folder / "source")
    store.add(source, values(), case.source, case.recorded)
    units = {
        "scatter": source.storage,
        "weave": Grid(SHAPE, (source.storage.cuts[0], (0, 24))),
        "block": Grid(SHAPE, ((0, 16, 32), (0, 24))),
    }[case.strategy]
    sides = side(source, case.source), side(target, case.target)
    pace = {"at_once": case.at_once, "gathered": case.gathered}
    move = by_hand(placement, *sides, case.strategy, units, 200, **pace)
    return Moving(case, move, store, folder / "target")


def _placement(case: MoveCase, source: TensorSpec) -> tuple[Piece, TensorSpec]:
    if case.change == "turned":
        target = tensor("w", SHAPE[::-1], (6, 16))
        full = Box.full(SHAPE), Box.full(SHAPE[::-1])
        return Piece("w", full[0], "w", full[1], (1, 0), "float32", "float32"), target
    target = tensor(
        "w", SHAPE, (16, case.columns), "float16" if case.change == "cast" else "float32"
    )
    return Piece.whole(source, target), target


@dataclass
class Nth:
    """``original``, but ``act(original, *args)`` in its place at its ``n``-th call."""

    n: int
    act: Callable[..., Any]
    original: Callable[..., Any]
    calls: int = 0

    def __get__(self, instance: Any, owner: Any = None) -> Callable[..., Any]:
        """As a method."""
        return partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == self.n:
            return self.act(self.original, *args, **kwargs)
        return self.original(*args, **kwargs)

    @property
    def struck(self) -> bool:
        """Whether there was such a call."""
        return self.calls >= self.n


PLACES = (1, 2, 3, 5, 8, 12, 17)
"""Which call is struck, as far as there are so many: first ones, and some behind bands of zeros."""


def strike(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[int], Moving], arm: Callable[[Any, int], Nth]
) -> int:
    """Carries the move out with the defect at each place in turn; how often it was caught.

    Never may it go unnoticed that something else was written than should have been.
    """
    caught = 0
    for n in PLACES:
        move = make(n)
        with monkeypatch.context() as patch:
            defect = arm(patch, n)
            try:
                move.run()
            except VerificationError:
                caught += 1
                continue
        np.testing.assert_array_equal(move.found(), move.expected)
        if not defect.struck:
            break
    return caught


def put_defect(patch: Any, owner: Any, name: str, n: int, act: Callable[..., Any]) -> Nth:
    """Puts a defect in the place of the ``n``-th call of a function."""
    defect = Nth(n, act, getattr(owner, name))
    patch.setattr(owner, name, defect)
    return defect
