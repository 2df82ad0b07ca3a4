"""The sums of what was written (TargetDigest), and the weighted sum that it must have (``expected_sum``).

A target chunk is often a narrow stripe of its tensor, so that a piece of it has many short rows,
and a checksum call for each would cost more than the bytes. So the pieces of a band are copied
back, from the memory that was written and by the places where it was written, into rows as wide
as the band, and these are summed in one call.

If elements keep their bytes and places, source and target have the same digest. Else both sides are summed up by the elements' places
in the target, each as it lies in memory; results of casts are computed a second time from the decoded band. What says where an element
belongs, the piece, is used here independently of all code that cuts, casts and places them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from reshard.checksums.sums import sum_of_box
from reshard.checksums.tensor_digest import runs_of
from reshard.checksums.weighted_sums import (
    MODULUS,
    Along,
    weighted_sum,
    weighted_sum_along,
    weights_of,
)
from reshard.engine.cast import SLAB_ELEMENTS, converted
from reshard.engine.task import target_element_type
from reshard.geometry.grid import Box
from reshard.planning.piece import Piece

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from reshard.checksums.weighted_sums import Weights
    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]


LONG_RUN_BYTES = 64 << 10
"""Rows of at least this length are summed in place: copying them would cost more than the calls."""


class TargetDigest:
    """Sums bands of one tensor; ``memory`` holds the largest of them, ``is_weighted`` if elements have changed."""

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], memory: Bytes, *, is_weighted: bool
    ) -> None:
        self._shape = shape
        self._dtype = dtype
        self._memory = memory
        self._is_weighted = is_weighted

    def placed(self, pieces: Sequence[tuple[Array, Box]]) -> int:
        """The weighted sum of pieces at their places; 0 if the digest alone proves them."""
        return sum(weighted_sum(*one) for one in pieces) % MODULUS if self._is_weighted else 0

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


def expected_sum(piece: Piece, band: Array, box: Box) -> int:
    """The weighted sum of ``band``, at ``box`` of a piece, at its place in the target."""
    if not piece.is_computed:
        return weighted_sum_along(band, _weights(piece, box))
    dtype, total = target_element_type(piece), 0
    for elements, part in slabs(band, box):
        cast = converted(elements, dtype, saturate=piece.saturate, arithmetic=piece.arithmetic)
        total += weighted_sum_along(cast, _weights(piece, part))
    return total


def _weights(piece: Piece, box: Box) -> list[Along]:
    """The weights of the axes of a box of a piece: of each dimension of the target, for the axes that make it up."""
    place, found, first = piece.in_target(box), [], 0
    sizes = ((),) * place.rank if piece.target_view is None else piece.target_view.sizes
    for dim, split in enumerate(sizes):
        count = max(1, len(split))
        axes, among = piece.axis_order[first : first + count], slice(first, first + count)
        found.append(
            Along(axes, _weights_within(dim, split, place.start[among], place.stop[among]))
        )
        first += count
    return found


def _weights_within(
    dim: int, sizes: Sequence[int], start: Sequence[int], stop: Sequence[int]
) -> Weights:
    """The weights of the indices in a box of a dimension that is split into ``sizes``; it has an axis for each of them."""
    row = math.prod(sizes[1:])
    weights = weights_of(dim, start[0] * row, stop[0] * row)
    if len(sizes) <= 1:
        return weights
    within = tuple(slice(a, b) for a, b in zip(start[1:], stop[1:], strict=True))
    return weights.reshape(-1, *sizes[1:])[:, *within]


def slabs(band: Array, box: Box) -> Iterator[tuple[Array, Box]]:
    """The band in parts of about SLAB_ELEMENTS, each with its box, so that copies stay small."""
    if band.size <= SLAB_ELEMENTS:
        if band.size:
            yield band, box
        return
    axis = next(d for d in range(band.ndim) if band.shape[d] > 1)
    step = max(1, SLAB_ELEMENTS * band.shape[axis] // band.size)
    for start in range(0, band.shape[axis], step):
        stop = min(start + step, band.shape[axis])
        part = Box(
            (*box.start[:axis], box.start[axis] + start, *box.start[axis + 1 :]),
            (*box.stop[:axis], box.start[axis] + stop, *box.stop[axis + 1 :]),
        )
        yield from slabs(band[(slice(None),) * axis + (slice(start, stop),)], part)
