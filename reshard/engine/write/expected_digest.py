"""The digest that a band must have after a cast or a change of byte order.

Where elements keep their type and order, source and target have the same digest. Else what should
have been written is made a second time from the decoded band, apart from everything that cuts,
casts and places it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from reshard.checksums.sums import sum_of_box
from reshard.engine.cast import SLAB_ELEMENTS, converted
from reshard.engine.task import Unit, target_element_type
from reshard.geometry.box import Box
from reshard.planning.piece import Piece

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


def expected_sum(unit: Unit, piece: Piece, band: Array, box: Box) -> int:
    """What ``band``, lying at ``box`` of a piece, adds to the target's digest."""
    dtype = target_element_type(piece)
    shape = unit.shape if piece.target_view is None else piece.target_view.shape
    total = 0
    for elements, part in slabs(band, box):
        expected = elements
        if piece.is_cast:
            expected = converted(elements, dtype, saturate=piece.saturate)
        turned = expected.transpose(piece.axis_order)
        total ^= sum_of_box(turned, piece.in_target(part), shape)
    return total


def slabs(band: Array, box: Box) -> Iterator[tuple[Array, Box]]:
    """The band in parts of about SLAB_ELEMENTS, whose copies stay small, each with its box."""
    if band.size <= SLAB_ELEMENTS:
        if band.size:
            yield band, box
        return
    axis = next(d for d, n in enumerate(band.shape) if n > 1)
    step = max(1, SLAB_ELEMENTS * band.shape[axis] // band.size)
    for start in range(0, band.shape[axis], step):
        stop = min(start + step, band.shape[axis])
        part = Box(
            (*box.start[:axis], box.start[axis] + start, *box.start[axis + 1 :]),
            (*box.stop[:axis], box.start[axis] + stop, *box.stop[axis + 1 :]),
        )
        yield from slabs(band[(slice(None),) * axis + (slice(start, stop),)], part)
