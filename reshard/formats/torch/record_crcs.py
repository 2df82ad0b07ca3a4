"""RecordCrcs: the CRC-32s that archives of torch have of the records with a tensor's elements."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from reshard.checksums.crc import CRC32
from reshard.checksums.tensor_digest import PieceCrcs
from reshard.formats.contents import Extent, RawPiece, RecordedRange
from reshard.formats.loose_pieces import is_reordered
from reshard.geometry.grid import Box


def crcs_of_number(element: bytes) -> PieceCrcs:
    """The CRC of a number in a pickle whose own CRC-32 was compared."""
    return PieceCrcs.of([Box.full(())], [CRC32.of(element)], len(element), CRC32)


class RecordCrcs(Struct, frozen=True):
    """The pieces of a tensor that fill one record each, and the CRC-32 of each record; none for a tensor without elements."""

    pieces: tuple[RawPiece, ...]
    values: tuple[int, ...]
    itemsize: int

    @classmethod
    def of(
        cls, pieces: Sequence[RawPiece], values: Sequence[int], itemsize: int
    ) -> RecordCrcs | None:
        """The CRCs of all pieces of a tensor; None if one is 0, which torch writes when it computes none."""
        return cls(tuple(pieces), tuple(values), itemsize) if all(values) else None

    def summed(self) -> PieceCrcs | None:
        """The CRCs that boxes of the tensor add up to; None where a piece has its elements in another order."""
        if any(map(is_reordered, self.pieces)):
            return None
        boxes = [piece.box for piece in self.pieces]
        return PieceCrcs.of(boxes, self.values, self.itemsize, CRC32)

    def ranges(self) -> list[RecordedRange]:
        """The range of each record, and its CRC-32."""
        return [
            RecordedRange(self._extent(piece), CRC32, value)
            for piece, value in zip(self.pieces, self.values, strict=True)
        ]

    def _extent(self, piece: RawPiece) -> Extent:
        nbytes = piece.box.size * self.itemsize
        return Extent(piece.path, piece.offset, nbytes, version=piece.version)
