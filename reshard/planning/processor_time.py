"""Seconds of processors that the tasks of a plan take, all together and the longest alone.

``Price.seconds`` ranks strategies and leaves out what all of them do: reading and writing files or requests, and casts.
The constants here add it, so that the sum is an estimate. docs/how-to/size-a-conversion.md says how good it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from reshard.planning.move import Move
from reshard.planning.multi_plan import MultiPlan

SECONDS_PER_FILE_BYTE = 1 / 4e9
"""System calls that read or write a byte of a file (measured: 0.2 to 0.3 s per GB in each direction)."""

SECONDS_PER_BUCKET_BYTE = 1 / 0.8e9
"""Requests that read or write a byte of an object. A copy by the same client takes 2 to 3 s per GB, in and out (measured,
see docs/how-to/buckets.md)."""

SECONDS_PER_CAST_BYTE = 1 / 0.4e9
"""A cast of a byte of the source, with the statistics of what it loses (measured: 2.5 to 3.4 s per GB)."""


class ProcessorTime(Struct, frozen=True):
    """What the tasks of a run take on one processor.

    Attributes:
        total_s: seconds of all tasks together.
        longest_task_s: seconds of the longest task; one task runs on one processor.
    """

    total_s: float
    longest_task_s: float


def processor_time(
    plan: MultiPlan, read_s_per_byte: float, write_s_per_byte: Sequence[float]
) -> ProcessorTime:
    """The time of all reads of a plan, each with the targets that it fills.

    Args:
        read_s_per_byte: seconds to get a byte of the source, without decoding.
        write_s_per_byte: for each target, seconds to put a byte, without encoding.
    """
    total_s = longest_s = 0.0
    for read in plan.reads:
        moves = [plan.move(at) for at in read]
        seconds = moves[0].price.decoded_bytes * read_s_per_byte
        for at, move in zip(read, moves, strict=True):
            written_s = move.price.written_bytes * write_s_per_byte[at.target]
            seconds += move.price.seconds + written_s + _cast_seconds(move)
        total_s += seconds
        longest_s = max(longest_s, seconds * _largest_share(moves[0]))
    return ProcessorTime(total_s, longest_s)


def _cast_seconds(move: Move) -> float:
    if not move.placement.is_cast:
        return 0.0
    return math.prod(move.placement.shape) * move.source.spec.itemsize * SECONDS_PER_CAST_BYTE


def _largest_share(move: Move) -> float:
    """The share of a move's elements that its largest task has."""
    elements = math.prod(move.units.shape)
    return math.prod(move.units.largest) / elements if elements else 1.0
