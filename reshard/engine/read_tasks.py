"""ReadTasks: the tasks of one read of a plan for units that targets lack, each with its units and its chunks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from reshard.checksums.tensor_digest import PieceCrcs
from reshard.engine.books import TargetRun
from reshard.engine.output import TargetOutput
from reshard.engine.task import SourceRead, Take, TargetChunk, Task, Unit
from reshard.formats.base import Reader
from reshard.formats.contents import Encoding, SourceChunk, StoredTensor
from reshard.geometry.grid import Box, Cuts, Grid, Index
from reshard.geometry.view import View
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece
from reshard.planning.planner import open_files_per_task
from reshard.planning.plans import Fill, FillAt, MultiPlan, Read
from reshard.storage.location import is_in_bucket

REQUEST_WEIGHT = 1 << 20
"""Extra weight of a task whose requests have a long latency, so that workers wait side by side."""


class _ReadFill(Struct, frozen=True, gc=False):
    """A fill of a read.

    Attributes:
        first: number of its first unit among the units of its tensor.
        changes: for each of its pieces, true if the row-major bytes of target and source differ.
    """

    at: FillAt
    fill: Fill
    first: int
    changes: tuple[bool, ...]


class _UnitToFill(Struct, frozen=True, gc=False):
    """One unit of work: a box that one task fills.

    Attributes:
        number: among the units of its tensor.
        box: of the piece; for several pieces, of the target.
    """

    own: _ReadFill
    number: int
    box: Box

    @property
    def at(self) -> FillAt:
        return self.own.at

    @property
    def fill(self) -> Fill:
        return self.own.fill


class ReadTasks:
    """The tasks of a read, for units that targets lack."""

    __slots__ = ("_fills", "_open_files", "_plan", "_read", "_readers", "_targets", "decoded_bytes")

    def __init__(
        self,
        plan: MultiPlan,
        read: Read,
        readers: Sequence[Reader],
        targets: Mapping[int, TargetRun],
    ) -> None:
        self._plan = plan
        self._read = read
        self._readers = readers
        self._targets = targets
        self._fills = [_read_fill(plan, at) for at in read.fills if at.target in targets]
        files = open_files_per_task(plan.workers) // 2
        self._open_files = max(8, files // max(1, len(read.fills)))
        self.decoded_bytes = plan.price(read).decoded_bytes

    @property
    def count(self) -> int:
        """Number of its units."""
        return self._read.units.count

    @property
    def unit_bytes(self) -> int:
        """Approximate number of bytes that each of its tasks decodes."""
        return self.decoded_bytes // max(1, self.count)

    def is_left(self, unit: int) -> bool:
        """True if a target lacks any part of a unit."""
        return any(not self._is_done(wanted) for wanted in self._wanted(unit))

    def filled(self, unit: int) -> Iterator[tuple[int, int, int]]:
        """The target, the tensor and the number of each unit that a unit of the read fills."""
        return ((w.at.target, w.at.tensor, w.number) for w in self._wanted(unit))

    def task(self, unit: int) -> Task:
        """The task that fills a unit of its one fill."""
        return self._task(list(self._wanted(unit)))

    def tasks(self, of: range) -> Iterator[tuple[int, Task]]:
        """A task for each unit of a range that any target lacks, each with its weight: roughly the bytes that it decodes."""
        if not self._fills:
            return
        nbytes = self.unit_bytes
        if self._waits_for_answers():
            nbytes += REQUEST_WEIGHT
        for unit in of:
            left = [wanted for wanted in self._wanted(unit) if not self._is_done(wanted)]
            if left:
                yield nbytes, self._task(left)

    def _wanted(self, unit: int) -> Iterator[_UnitToFill]:
        """The units of fills that a unit of the read fills."""
        units = self._read.units
        box = units.box(units.index_at(unit))
        for own in self._fills:
            if own.fill.units is units:  # the units of the read are its own
                yield _UnitToFill(own, own.first + unit, box)
                continue
            piece = own.fill.piece
            found = box.shift(self._read.box.start).intersect(piece.source_box)
            if found is not None:
                part = found.relative_to(piece.source_box.start)
                yield _UnitToFill(own, own.first + _first_number(own.fill.units, part), part)

    def _waits_for_answers(self) -> bool:
        outputs = [self._targets[own.at.target].output for own in self._fills]
        return any(is_in_bucket(output.root) for output in outputs) or any(
            piece.fill is None and self._stored_far(piece.key)
            for own in self._fills
            for piece in own.fill.pieces
        )

    def _stored_far(self, key: tuple[int, str]) -> bool:
        checkpoint, name = key
        return self._readers[checkpoint].tensors[name].encoding.read_ahead_bytes > 0

    def _is_done(self, wanted: _UnitToFill) -> bool:
        done = self._targets[wanted.at.target].done
        return done is not None and done.has(wanted.at.tensor, wanted.number)

    def _task(self, wanted: Sequence[_UnitToFill]) -> Task:
        units = tuple(
            unit_of(w.at, w.fill, w.number, w.box, self._targets[w.at.target].output)
            for w in wanted
        )
        fill = wanted[0].fill
        return Task(
            tuple(self._reads(wanted, units)),
            units,
            fill.band_bytes,
            fill.price.task_bytes,
            self._open_files,
            fill.at_once,
            fill.gathered_bytes,
        )

    def _reads(self, wanted: Sequence[_UnitToFill], units: Sequence[Unit]) -> Iterator[SourceRead]:
        first = wanted[0].fill
        if not first.is_joint:
            takes = [Take(number, 0, w.box, w.own.changes[0]) for number, w in enumerate(wanted)]
            pieces = [w.fill.piece for w in wanted]
            yield self._source_read(first, 0, pieces, takes)
            return
        (unit,) = units
        for number, piece in enumerate(first.pieces):
            changes = wanted[0].own.changes[number]
            takes = [Take(0, number, box, changes) for box in piece.of_target(unit.box)]
            if takes:
                yield self._source_read(first, number, [piece] * len(takes), takes)

    def _source_read(
        self, fill: Fill, number: int, pieces: Sequence[Piece], takes: Sequence[Take]
    ) -> SourceRead:
        boxes = [piece.to_source(take.box) for piece, take in zip(pieces, takes, strict=True)]
        box = boxes[0] if len(boxes) == 1 else Box.around(boxes)
        piece, spec = pieces[0], fill.sources[number].spec
        reader = None if piece.fill is not None else self._readers[piece.checkpoint]
        wanted = [p.in_source(take.box) for p, take in zip(pieces, takes, strict=True)]
        return source_read(piece, spec, reader, box, tuple(takes), wanted)


def _first_number(grid: Grid, box: Box) -> int:
    """The number of the part of a grid that is, or begins with, a box."""
    return grid.number_of(tuple([found.start for found in grid.overlapping(box)]))


def _read_fill(plan: MultiPlan, at: FillAt) -> _ReadFill:
    fills = plan.plans[at.target].tensors[at.tensor].fills
    first = sum([fill.units.count for fill in fills[: at.fill]])
    fill = fills[at.fill]
    return _ReadFill(at, fill, first, tuple(map(fill.changes, range(len(fill.pieces)))))


_CONSTANT = Encoding()


def unit_of(at: FillAt, fill: Fill, number: int, box: Box, output: TargetOutput) -> Unit:
    """A unit of a target: a box of the fill's piece, or of the target if the fill has several."""
    spec = fill.target.spec
    place = box if fill.is_joint else fill.piece.to_target(box)
    return Unit(
        at.target,
        at.tensor,
        number,
        fill.strategy,
        spec.name,
        spec.dtype,
        spec.shape,
        output.encodings[spec.name],
        fill.pieces,
        tuple(_target_chunks(spec, place, output)),
        place,
        spec.storage.clip(place),
    )


def source_read(
    piece: Piece,
    spec: TensorSpec,
    reader: Reader | None,
    box: Box,
    takes: tuple[Take, ...],
    wanted: Sequence[Box] = (),
) -> SourceRead:
    """The reading of a box of a tensor; without a reader the piece is filled with one element.

    ``wanted``: the boxes of the source's view that are taken, if it has one.
    """
    if reader is None:
        index = (0,) * box.rank
        chunks = (SourceChunk(index, None, box, box.shape),)
        element = piece.fill or b""
        return SourceRead("", spec.dtype, spec.shape, _CONSTANT, element, chunks, box, takes)
    stored = reader.tensors[piece.source]
    return SourceRead(
        piece.source,
        piece.source_dtype,
        spec.shape,
        stored.encoding,
        stored.fill,
        tuple(_source_chunks(spec, box, reader, piece.source_view, wanted)),
        box,
        takes,
        bool(stored.digest) and piece.source_box == Box.full(spec.shape),
        _crcs(stored, piece, box),
    )


def _crcs(stored: StoredTensor, piece: Piece, box: Box) -> PieceCrcs | None:
    """The checksums that prove the elements of a box."""
    crcs = stored.proving_crcs(is_viewed=piece.source_view is not None)
    return crcs if crcs is None or piece.source_view is not None else crcs.near(box)


def _source_chunks(
    spec: TensorSpec, around: Box, reader: Reader, view: View | None, wanted: Sequence[Box]
) -> Iterator[SourceChunk]:
    grid = spec.storage
    for index, box in _boxes(grid.overlapping(around), grid.cuts):
        if view is not None and not view.meets(box, wanted):
            continue  # it lies between the rows that are wanted
        extent = reader.locate(spec.name, index)
        yield SourceChunk(index, extent, box, spec.chunk_shape or box.shape)


def _target_chunks(spec: TensorSpec, place: Box, output: TargetOutput) -> Iterator[TargetChunk]:
    grid = spec.storage
    for index, box in _boxes(grid.overlapping(place), grid.cuts):
        places = output.places(spec.name, index)
        yield TargetChunk(index, places, box, spec.chunk_shape or box.shape)


def _boxes(ranges: Sequence[range], cuts: Sequence[Cuts]) -> Iterator[tuple[Index, Box]]:
    """The parts of a grid with these cuts whose indices are in ``ranges``, row-major.

    A large task has hundreds, so that each cut is looked up once.
    """
    starts = [c[r.start : r.stop] for c, r in zip(cuts, ranges, strict=True)]
    stops = [c[r.start + 1 : r.stop + 1] for c, r in zip(cuts, ranges, strict=True)]
    indices = itertools.product(*ranges)
    corners = zip(itertools.product(*starts), itertools.product(*stops), strict=True)
    for index, (start, stop) in zip(indices, corners, strict=True):
        yield index, Box(start, stop)
