"""PieceCrcs: the CRC of pieces of a tensor, which its format recorded.

TensorFlow records the CRC32C of each slice, and the archives of torch the CRC-32 of each piece. Pieces may be any boxes, and tasks read
any others. The linear part of a CRC adds up: what a box of elements adds to the pieces that it meets, taken over boxes that tile the
tensor, is the XOR of the linear parts of all pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.checksums.crc import CRC32C, Crc, linear_part
from reshard.checksums.tensor_digest import linear_of_box
from reshard.geometry.box import Box

if TYPE_CHECKING:
    from numpy.typing import NDArray


class PieceCrcs(Struct, frozen=True, gc=False):
    """What the format recorded of a tensor.

    Attributes:
        boxes: the pieces that tile the tensor, row-major each; none for one that is stored whole.
        total: the XOR of the linear parts of their CRCs.
    """

    boxes: tuple[Box, ...]
    total: int
    crc: Crc = CRC32C

    @classmethod
    def of(
        cls, boxes: Sequence[Box], values: Sequence[int], itemsize: int, crc: Crc = CRC32C
    ) -> PieceCrcs:
        """Of row-major pieces with these CRCs; of one piece, which is the whole tensor, the box need not be kept."""
        total = 0
        for box, value in zip(boxes, values, strict=True):
            total ^= linear_part(crc, value, box.size * itemsize)
        return cls(tuple(boxes) if len(boxes) > 1 else (), total, crc)

    def near(self, around: Box) -> PieceCrcs:
        """The same, with no other pieces than those that meet a box, which is all that is read."""
        if not self.boxes:
            return self
        # One stays: without any the tensor would be whole.
        met = tuple(box for box in self.boxes if box.intersect(around)) or self.boxes[:1]
        return PieceCrcs(met, self.total, self.crc)

    def sum_of_box(self, elements: NDArray[Any], box: Box, shape: tuple[int, ...]) -> int:
        """What ``elements`` at ``box`` of the tensor of ``shape``, or of a view of one that is whole, add to ``total``."""
        if not self.boxes:
            return linear_of_box(self.crc, elements, box, shape)
        total = 0
        for piece in self.boxes:
            met = piece.intersect(box)
            if met is not None:
                own = elements[met.relative_to(box.start).slices]
                total ^= linear_of_box(self.crc, own, met.relative_to(piece.start), piece.shape)
        return total
