"""OpenUnit: a unit of a target, filled from decoded bands; PieceCopier: a piece of it that takes a part of each band."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from reshard.checksums.sums import Sums, coverage, sum_of_box
from reshard.checksums.tensor_digest import PieceCrcs
from reshard.engine.decode.interleave import Interleaved
from reshard.engine.error_context import about_target, about_tensor
from reshard.engine.task import Result, Take, Task, Unit, source_element_type
from reshard.engine.write.sinks import ChunkSink, PieceSink
from reshard.engine.write.target_digest import expected_sum
from reshard.geometry.grid import Box
from reshard.planning.piece import Piece

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[Any]


class OpenUnit(Struct):
    """One unit, filled from decoded bands.

    Attributes:
        name: of the target in errors, if there are several.
        sums: for each piece, the sums of what was read and the sums expected of the target.
        is_recorded: true if the source's digest was not taken, since it is recorded and the target must have the same.
    """

    unit: Unit
    sink: ChunkSink | PieceSink
    name: str | None
    sums: list[Sums]
    moved_bytes: int = 0
    is_recorded: bool = False

    def result(self, task: Task) -> Result:
        """Stores the assembled chunks; returns the result of the unit."""
        unit = self.unit
        with about_target(self.name), about_tensor(unit.name, source=self.sink.source):
            chunks = tuple(self.sink.close())
        first, *others = self.sums
        first = first.merge(self.sink.sums)
        if self.is_recorded:
            first = replace(first, source=first.target, expected=first.target)
        cast = self.sink.cast if any(piece.is_computed for piece in unit.pieces) else None
        return Result(
            unit.tensor,
            unit.number,
            (first, *others),
            self.moved_bytes,
            sum([read.stored_bytes for read in task.reads]),
            chunks,
            cast,
            target=unit.target,
        )


class _Taken(Struct, frozen=True):
    """The part of a band that a unit takes.

    Attributes:
        box: of the piece.
        is_band: true if it is all of the band.
    """

    elements: Array | Interleaved
    box: Box
    is_band: bool


class PieceCopier(Struct):
    """One piece of a unit; it takes a box of each band.

    Attributes:
        dtype: the type in which it views the source's elements.
    """

    take: Take
    piece: Piece
    opened: OpenUnit
    dtype: np.dtype[Any]
    parts: list[_Taken] = field(default_factory=list)

    @classmethod
    def of(cls, take: Take, opened_units: Sequence[OpenUnit]) -> PieceCopier:
        opened = opened_units[take.unit]
        piece = opened.unit.pieces[take.piece]
        return cls(take, piece, opened, source_element_type(piece))

    def find(self, band: Array | Interleaved, box: Box) -> None:
        """Finds its part of a band at ``box`` of the source."""
        if isinstance(band, Interleaved):  # only for copiers of whole bands
            own = box.relative_to(self.piece.source_box.start)
            self.parts = [_Taken(band, own, True)]
        else:
            self.parts = list(self._parts(self.seen(band), box))

    def _parts(self, band: Array, box: Box) -> Iterator[_Taken]:
        for overlap in self.piece.overlaps(box):
            found = overlap.box.intersect(self.take.box)
            if found is None:
                continue
            if overlap.where.shape == box.shape == found.shape:
                yield _Taken(band, found, True)
                continue
            inside = band[overlap.inside.slices].reshape(overlap.shape)[overlap.where.slices]
            yield _Taken(inside[found.relative_to(overlap.box.start).slices], found, False)

    def put(self) -> None:
        """Puts its part into the target."""
        unit, opened = self.opened.unit, self.opened
        with about_target(opened.name), about_tensor(unit.name, source=opened.sink.source):
            for part in self.parts:
                opened.sink.put(self.piece, part.elements, part.box)
                opened.moved_bytes += part.elements.nbytes

    def seen(self, band: Array) -> Array:
        """The band in this copier's dtype: one target may view the same bits as numbers, another only as bits."""
        return band if band.dtype == self.dtype else band.view(self.dtype)

    def summed(self, shape: tuple[int, ...], of_band: int | None) -> int:
        """The contribution of its parts to the digest of a source of ``shape``; ``of_band``: that of the whole band, if known."""
        view, total = self.piece.source_view, 0
        for part in self.parts:
            if part.is_band and of_band is not None:
                total ^= of_band
            elif not isinstance(part.elements, Interleaved):
                place = part.box.shift(self.piece.source_box.start)
                total ^= sum_of_box(part.elements, place, view.shape if view else shape)
        return total

    def stored(self, crcs: PieceCrcs | None, shape: tuple[int, ...]) -> int:
        """The contribution of its parts to the format's own checksum of a source of ``shape``."""
        view, total = self.piece.source_view, 0
        for part in () if crcs is None else self.parts:
            place = part.box.shift(self.piece.source_box.start)
            if crcs is not None and not isinstance(part.elements, Interleaved):
                total ^= crcs.sum_of_box(part.elements, place, view.shape if view else shape)
        return total

    def expected(self) -> int:
        """The expected contribution of its parts to the target's digest, computed a second time."""
        total = 0
        for part in self.parts:
            if not isinstance(part.elements, Interleaved):
                total ^= expected_sum(self.opened.unit, self.piece, part.elements, part.box)
        return total

    def add(self, source: int, expected: int, stored: int = 0) -> None:
        """Counts the parts as read once."""
        boxes = (box for part in self.parts for box in self.piece.source_boxes(part.box))
        sums, number = self.opened.sums, self.take.piece
        sums[number] = sums[number].merge(
            Sums(source, expected, read=coverage(boxes), stored=stored)
        )
