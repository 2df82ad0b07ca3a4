"""Seconds of processors that the tasks of a plan take, all together and the longest alone.

``Price.seconds`` ranks strategies and leaves out what all of them do: reading and writing files or requests, and casts.
The constants here add it, so that the sum is an estimate. docs/how-to/size-a-conversion.md says how good it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from reshard.geometry.grid import Grid
from reshard.planning.multi_plan import MultiPlan
from reshard.planning.tensor_plan import Fill

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
        seconds = plan.price(read).decoded_bytes * read_s_per_byte
        for at in read.fills:
            fill = plan.fill(at)
            written_s = fill.price.written_bytes * write_s_per_byte[at.target]
            seconds += fill.price.seconds + written_s + _cast_seconds(fill)
        total_s += seconds
        longest_s = max(longest_s, seconds * _largest_share(read.units))
    return ProcessorTime(total_s, longest_s)


def _cast_seconds(fill: Fill) -> float:
    if not any(piece.is_cast for piece in fill.pieces):
        return 0.0
    return fill.moved_bytes * SECONDS_PER_CAST_BYTE


def _largest_share(units: Grid) -> float:
    """The share of what is read that the largest unit has."""
    elements = math.prod(units.shape)
    return math.prod(units.largest) / elements if elements else 1.0
