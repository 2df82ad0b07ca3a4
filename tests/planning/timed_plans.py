"""Plans with prices that are easy to add up by hand."""

from __future__ import annotations

from msgspec.structs import replace

from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece
from reshard.planning.planner import WantedPiece, make_plan
from reshard.planning.plans import Fill, MultiPlan, Plan, Price, Side, TensorPlan

GB = 1_000_000_000


def move(
    seconds: float,
    read: int = 0,
    written: int = 0,
    chunks: tuple[int, ...] = (0, 2, 4, 6, 8),
    cast: str = "float32",
) -> Fill:
    """A move of 8 float32 with this price, in one task for each part of ``chunks``."""
    units = Grid((8,), (chunks,))
    source = TensorSpec("w", (8,), "float32", units, None)
    target = TensorSpec("w", (8,), cast, units, None)
    wanted = WantedPiece(
        Piece.whole(source, target), Side(source, "raw", True, 0), Side(target, "raw", True, 0)
    )
    (made,) = make_plan([wanted], 1 << 30, 1).fills
    tasks = len(chunks) - 1
    price = Price(tasks, read, read, written, writes=tasks, task_bytes=1, seconds=seconds)
    return replace(made, units=units, price=price)


def plan(*moves: Fill, workers: int = 4) -> MultiPlan:
    """The plan of one target."""
    return MultiPlan.alone(Plan(tuple(TensorPlan((move,)) for move in moves), 1 << 30, workers))
