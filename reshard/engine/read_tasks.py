"""ReadTasks: the tasks of one read of a plan, as far as targets lack their units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from reshard.engine.books import TargetRun
from reshard.engine.part_units import Range
from reshard.engine.task import SourceRead, Take, Task, Unit
from reshard.engine.task_parts import changes_bytes, source_read, unit_of
from reshard.formats.base import Reader
from reshard.formats.file_map import Place
from reshard.geometry.box import Box
from reshard.geometry.grid import Grid
from reshard.planning.multi_plan import FillAt, MultiPlan, Read
from reshard.planning.piece import Piece
from reshard.planning.shared_reads import open_files_per_task
from reshard.planning.tensor_plan import Fill, around

REQUEST_WEIGHT = 1 << 20
"""Where requests take long, so much for each task: workers should wait side by side."""


class _OwnFill(Struct, frozen=True, gc=False):
    """A fill of a read.

    Attributes:
        first: number of its first unit among the units of its tensor.
        changes: for each of its pieces, whether the target has other row-major bytes than the source.
    """

    at: FillAt
    fill: Fill
    first: int
    changes: tuple[bool, ...]


class _Wanted(Struct, frozen=True, gc=False):
    """A unit of a fill that a task of a read fills.

    Attributes:
        number: among the units of its tensor.
        box: of the piece; of several pieces, of the target.
    """

    own: _OwnFill
    number: int
    box: Box

    @property
    def at(self) -> FillAt:
        return self.own.at

    @property
    def fill(self) -> Fill:
        return self.own.fill


class ReadTasks:
    """The tasks of a read, as far as targets lack their units."""

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
        self._fills = [_own_fill(plan, at) for at in read.fills if at.target in targets]
        files = open_files_per_task(plan.workers) // 2
        self._open_files = max(8, files // max(1, len(read.fills)))
        self.decoded_bytes = plan.price(read).decoded_bytes

    @property
    def is_in_order(self) -> bool:
        """Whether its target's chunks must be written in order; then it has one fill."""
        return any(own.fill.target.in_order is not None for own in self._fills)

    @property
    def count(self) -> int:
        """How many units it has."""
        return self._read.units.count

    @property
    def unit_bytes(self) -> int:
        """About how many bytes each of its tasks decodes."""
        return self.decoded_bytes // max(1, self.count)

    def units(self) -> range:
        """All of its units."""
        return range(self.count)

    def is_left(self, unit: int) -> bool:
        """Whether a target lacks anything of a unit."""
        return any(not self._is_done(wanted) for wanted in self._wanted(unit))

    def filled(self, unit: int) -> Iterator[tuple[int, int]]:
        """The tensor and number of each unit of the targets that a unit of the read fills."""
        return ((wanted.at.tensor, wanted.number) for wanted in self._wanted(unit))

    def first_places(self, unit: int) -> tuple[Place, ...]:
        """Where the first chunk of a unit of its one fill is stored."""
        (wanted,) = self._wanted(unit)
        fill, spec = wanted.fill, wanted.fill.target.spec
        box = wanted.box if fill.is_joint else fill.piece.to_target(wanted.box)
        index = tuple(r.start for r in spec.storage.overlapping(box))
        return self._targets[wanted.at.target].output.places(spec.name, index)

    def task(self, unit: int) -> Task:
        """The task that fills a unit of its one fill."""
        return self._task(list(self._wanted(unit)))

    def tasks(self, of: Range) -> Iterator[tuple[int, Task]]:
        """A task for each unit of a range that any target lacks, each with its weight: about how many bytes it decodes."""
        if not self._fills:
            return
        nbytes = self.unit_bytes
        if self._waits_for_answers():
            nbytes += REQUEST_WEIGHT
        for unit in of.units(self.count):
            left = [wanted for wanted in self._wanted(unit) if not self._is_done(wanted)]
            if left:
                yield nbytes, self._task(left)

    def _wanted(self, unit: int) -> Iterator[_Wanted]:
        """What a unit of the read fills."""
        units = self._read.units
        box = units.box(units.index_at(unit))
        for own in self._fills:
            if own.fill.units is units:  # the units of the read are its own
                yield _Wanted(own, own.first + unit, box)
                continue
            piece = own.fill.piece
            found = box.shift(self._read.box.start).intersect(piece.source_box)
            if found is not None:
                part = found.relative_to(piece.source_box.start)
                yield _Wanted(own, own.first + _number(own.fill.units, part), part)

    def _waits_for_answers(self) -> bool:
        outputs = [self._targets[own.at.target].output for own in self._fills]
        return any(output.traits.range_bytes for output in outputs) or any(
            piece.fill is None and self._stored_far(piece.key)
            for own in self._fills
            for piece in own.fill.pieces
        )

    def _stored_far(self, key: tuple[int, str]) -> bool:
        checkpoint, name = key
        return self._readers[checkpoint].tensors[name].encoding.read_ahead_bytes > 0

    def _is_done(self, wanted: _Wanted) -> bool:
        done = self._targets[wanted.at.target].done
        return done is not None and done.has(wanted.at.tensor, wanted.number)

    def _task(self, wanted: Sequence[_Wanted]) -> Task:
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
        )

    def _reads(self, wanted: Sequence[_Wanted], units: Sequence[Unit]) -> Iterator[SourceRead]:
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
        box = boxes[0] if len(boxes) == 1 else around(boxes)
        piece, spec = pieces[0], fill.sources[number].spec
        reader = None if piece.fill is not None else self._readers[piece.checkpoint]
        wanted = [p.in_source(take.box) for p, take in zip(pieces, takes, strict=True)]
        return source_read(piece, spec, reader, box, tuple(takes), wanted)


def _own_fill(plan: MultiPlan, at: FillAt) -> _OwnFill:
    fills = plan.plans[at.target].tensors[at.tensor].fills
    first = sum([fill.units.count for fill in fills[: at.fill]])
    fill = fills[at.fill]
    return _OwnFill(at, fill, first, tuple([changes_bytes(fill, p) for p in fill.pieces]))


def _number(grid: Grid, box: Box) -> int:
    """The number of the part of a grid that is, or begins with, a box; row-major."""
    number = 0
    for found, parts in zip(grid.overlapping(box), grid.parts, strict=True):
        number = number * parts + found.start
    return number
