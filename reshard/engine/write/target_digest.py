"""The digest of what was written (TargetDigest), and the one that it must have (``expected_sum``).

A target chunk is often a narrow stripe of its tensor, so that a piece of it has many short rows,
and a checksum call for each would cost more than the bytes. So the pieces of a band are copied
back, from the memory that was written and by the places where it was written, into rows as wide
as the band, and these are summed in one call.

If elements keep their type and order, source and target have the same digest. Else the expected
elements are computed a second time from the decoded band, independently of all code that cuts,
casts and places them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from reshard.checksums.sums import sum_of_box
from reshard.checksums.tensor_digest import runs_of
from reshard.engine.cast import SLAB_ELEMENTS, converted
from reshard.engine.task import Unit, target_element_type
from reshard.geometry.grid import Box
from reshard.planning.piece import Piece

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]


LONG_RUN_BYTES = 64 << 10
"""Rows of at least this length are summed in place: copying them would cost more than the calls."""


class TargetDigest:
    """Sums bands of one tensor; ``memory`` holds the largest of them."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], memory: Bytes) -> None:
        self._shape = shape
        self._dtype = dtype
        self._memory = memory

    def digest(self, pieces: Sequence[tuple[Array, Box]], band: Box) -> int:
        """Contribution of pieces, each with its place in the tensor, that together fill ``band``.

        Elements that no piece fills add nothing; the caller detects them by the ``coverage`` of the pieces.
        """
        nbytes = band.size * self._dtype.itemsize
        # The parts of a view may lie apart, in a band that is larger than they are.
        is_apart = sum([elements.size for elements, _ in pieces]) != band.size
        if len(pieces) == 1 or is_apart or all(self._has_long_runs(e) for e, _ in pieces):
            digest = 0
            for elements, box in pieces:
                digest ^= sum_of_box(elements, box, self._shape)
            return digest
        rows = self._memory[:nbytes].view(self._dtype).reshape(band.shape)
        for elements, box in pieces:
            rows[box.relative_to(band.start).slices] = elements
        return sum_of_box(rows, band, self._shape)

    def _has_long_runs(self, elements: Array) -> bool:
        run = runs_of(elements.shape, self._shape, elements.itemsize).run_bytes
        return run >= LONG_RUN_BYTES or run == elements.nbytes


def expected_sum(unit: Unit, piece: Piece, band: Array, box: Box) -> int:
    """The contribution of ``band``, at ``box`` of a piece, to the target's digest."""
    dtype = target_element_type(piece)
    shape = unit.shape if piece.target_view is None else piece.target_view.shape
    total = 0
    for elements, part in slabs(band, box, piece.axis_order):
        expected = elements
        if piece.is_computed:
            expected = converted(
                elements, dtype, saturate=piece.saturate, arithmetic=piece.arithmetic
            )
        turned = expected.transpose(piece.axis_order)
        total ^= sum_of_box(turned, piece.in_target(part), shape)
    return total


def slabs(band: Array, box: Box, order: Sequence[int] | None = None) -> Iterator[tuple[Array, Box]]:
    """The band in parts of about SLAB_ELEMENTS, each with its box, so that copies stay small.

    ``order``: the target's axes, slowest first. The first of them is cut, so that rows stay as long as possible.
    """
    if band.size <= SLAB_ELEMENTS:
        if band.size:
            yield band, box
        return
    axes = range(band.ndim) if order is None else order
    axis = next(d for d in axes if band.shape[d] > 1)
    step = max(1, SLAB_ELEMENTS * band.shape[axis] // band.size)
    for start in range(0, band.shape[axis], step):
        stop = min(start + step, band.shape[axis])
        part = Box(
            (*box.start[:axis], box.start[axis] + start, *box.start[axis + 1 :]),
            (*box.stop[:axis], box.start[axis] + stop, *box.stop[axis + 1 :]),
        )
        yield from slabs(band[(slice(None),) * axis + (slice(start, stop),)], part, order)
