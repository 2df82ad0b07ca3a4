"""PartUnits: the units of a plan that each part of a conversion does. Widest: the most parts that make it faster.

Parts have about the same cost (``planning.parts``). Files that are written in order, and files that share a chunk with them, are a group
that stays whole. Everything else is cut between any two units.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from reshard.engine.books import TargetRun
from reshard.engine.output import TargetOutput
from reshard.engine.read_tasks import ReadTasks
from reshard.formats.base import Reader
from reshard.planning.estimates import unit_cost
from reshard.planning.parts import Shares
from reshard.planning.plans import MultiPlan, Read
from reshard.storage.location import is_in_bucket
from reshard.storage.parts import MAX_PARTS, Part

ALL = Part(1, 1)
"""The only part of a conversion that is not cut."""

File = tuple[int, str]
"""A target, and a file below its root."""

UnitOfRead = tuple[int, int]
"""A read of the plan, and one of its units, by their numbers."""


class _Atoms(Struct, frozen=True):
    """The units of a plan that can be parted, and the groups that cannot.

    Attributes:
        reads: numbers of the reads whose units can.
        groups: units in an order in which every file grows.
        costs: of a unit of each read, then of each group.
        counts: units of each read, then 1 for each group.
    """

    reads: Sequence[int]
    groups: Sequence[Sequence[UnitOfRead]]
    costs: Sequence[int]
    counts: Sequence[int]

    @classmethod
    def of(cls, plan: MultiPlan, outputs: Mapping[int, TargetOutput], parts: int) -> _Atoms:
        """The atoms of a plan; what is not parted needs no costs."""
        to_buckets = [
            number in outputs and is_in_bucket(outputs[number].root)
            for number in range(len(plan.plans))
        ]
        reads, counts, costs = list[int](), list[int](), list[int]()
        ordered: dict[UnitOfRead, tuple[tuple[File, int], ...]] = {}
        in_group: dict[int, int] = {}
        for number, read in enumerate(plan.reads):
            target, fills = read.fills[0].target, [plan.fill(at) for at in read.fills]
            cost = unit_cost(read, fills, to_buckets, plan.workers) if parts > 1 else 1
            if fills[0].target.in_order is None or target not in outputs:
                reads.append(number)
                counts.append(read.units.count)
                costs.append(cost)
                continue
            in_group[number] = cost  # a read of a target that is written in order has one fill
            for unit in range(read.units.count):
                ordered[number, unit] = first_places(plan, read, unit, outputs[target])
        keys = list(ordered)
        groups = [[keys[at] for at in group] for group in in_order_of_files(list(ordered.values()))]
        costs += [sum([in_group[read] for read, _ in group]) for group in groups]
        return cls(reads, groups, costs, counts + [1] * len(groups))


def first_places(
    plan: MultiPlan, read: Read, unit: int, output: TargetOutput
) -> tuple[tuple[File, int], ...]:
    """The places of the first chunk of a unit of a read with one fill: each a file, and the offset in it."""
    at, box = read.fills[0], read.units.box(read.units.index_at(unit))
    fill = plan.fill(at)
    spec = fill.target.spec
    place = box if fill.is_joint else fill.piece.to_target(box)
    index = tuple([found.start for found in spec.storage.overlapping(place)])
    places = output.places(spec.name, index)
    return tuple([((at.target, found.file), found.start) for found in places])


class PartUnits:
    """The units of each of ``count`` parts, for readers and targets as ``task_batches`` takes them."""

    def __init__(
        self,
        plan: MultiPlan,
        readers: Sequence[Reader],
        targets: Sequence[TargetRun | None],
        count: int,
    ) -> None:
        self._plan, self._readers = plan, readers
        self._targets = {n: target for n, target in enumerate(targets) if target is not None}
        outputs = {number: target.output for number, target in self._targets.items()}
        self._atoms = _Atoms.of(plan, outputs, count)
        self._shares = Shares(self._atoms.costs, self._atoms.counts, count) if count > 1 else None

    def groups(self, part: Part) -> Iterator[list[tuple[ReadTasks, int]]]:
        """The units of each group of the part, in the order in which files grow."""
        first = len(self._atoms.reads)
        for number, _ in self._of(part):
            if number >= first:
                group = self._atoms.groups[number - first]
                made = {read: self._read(read) for read, _ in group}
                yield [(made[read], unit) for read, unit in group]

    def ranges(self, part: Part) -> Iterator[tuple[ReadTasks, range]]:
        """The other reads of the part, each with a range of its units."""
        for number, units in self._of(part):
            if number < len(self._atoms.reads):
                yield self._read(self._atoms.reads[number]), units

    def units(self, part: Part) -> Iterator[tuple[int, int, int]]:
        """The target, the tensor and the number of each unit of the part, done or not."""
        for group in self.groups(part):
            for read, unit in group:
                yield from read.filled(unit)
        for read, units in self.ranges(part):
            for unit in units:
                yield from read.filled(unit)

    def _of(self, part: Part) -> Iterator[tuple[int, range]]:
        """The atoms of a part, each with the range of its units; of a conversion that is not cut all of them."""
        if self._shares is not None:
            return self._shares.of(part.number - 1)
        return enumerate(map(range, self._atoms.counts))

    def _read(self, number: int) -> ReadTasks:
        return ReadTasks(self._plan, self._plan.reads[number], self._readers, self._targets)


class Widest(Struct, frozen=True):
    """The most parts that make a conversion faster.

    Attributes:
        reason: of the limit, such as ``model.safetensors is written by one process and has 41 % of the cost``.
    """

    parts: int
    reason: str

    def __str__(self) -> str:
        useful = "parts are" if self.parts > 1 else "part is"
        return f"at most {self.parts:,} {useful} useful: {self.reason}"


def widest(plan: MultiPlan, outputs: Sequence[TargetOutput | None]) -> Widest:
    """The widest useful cut of a plan that is made for several processes.

    The heaviest unit or group decides: more parts do not make it faster.
    """
    known = {number: output for number, output in enumerate(outputs) if output is not None}
    atoms = _Atoms.of(plan, known, MAX_PARTS)
    total = sum([cost * count for cost, count in zip(atoms.costs, atoms.counts, strict=True)])
    if not total:
        return Widest(1, "no tensor has an element to move")
    numbers = [number for number, count in enumerate(atoms.counts) if count]
    heaviest = max(numbers, key=lambda number: atoms.costs[number])
    parts = -(-total // atoms.costs[heaviest])
    if parts > MAX_PARTS:
        return Widest(MAX_PARTS, "a conversion has no more parts")
    share = f"{100 * atoms.costs[heaviest] / total:.3g} % of the cost"
    if heaviest < len(atoms.reads):
        read = plan.reads[atoms.reads[heaviest]]
        name = plan.plans[read.fills[0].target].tensors[read.fills[0].tensor].name
        return Widest(parts, f"a task of {name!r} is done by one process and has {share}")
    files: dict[File, None] = {}
    for number, unit in atoms.groups[heaviest - len(atoms.reads)]:
        read = plan.reads[number]
        output = known[read.fills[0].target]
        files.update(dict.fromkeys(file for file, _ in first_places(plan, read, unit, output)))
    (_, first), *others = files
    if not others:
        return Widest(parts, f"{first} is written by one process and has {share}")
    more = f"{first} and {len(others):,} more files share chunks"
    return Widest(parts, f"{more}, are written by one process and have {share}")


def in_order_of_files(places: Sequence[tuple[tuple[File, int], ...]]) -> Iterator[list[int]]:
    """The numbers of all chunks, grouped by files; each group is in an order in which every file grows.

    Args:
        places: of each chunk: one or several files, with its offset there. Files that share a chunk are in one group.

    >>> one, two = (0, "a"), (0, "b")
    >>> list(in_order_of_files([((one, 8),), ((two, 0),), ((one, 0),)]))
    [[2, 0], [1]]
    """
    by_file: dict[File, list[tuple[int, int]]] = defaultdict(list)
    for number, found in enumerate(places):
        for file, start in found:
            by_file[file].append((start, number))
    queues = {file: deque(number for _, number in sorted(of)) for file, of in by_file.items()}
    files = [[file for file, _ in found] for found in places]
    for group in _connected(files, list(queues)):
        yield list(_merged({file: queues[file] for file in group}, files))


def _connected(files: Sequence[Sequence[File]], every: Sequence[File]) -> list[list[File]]:
    """The files that chunks connect, directly or through others."""
    above = {file: file for file in every}

    def top(file: File) -> File:
        while above[file] != file:
            above[file] = above[above[file]]
            file = above[file]
        return file

    for first, *others in files:
        for other in others:
            above[top(other)] = top(first)
    groups: dict[File, list[File]] = defaultdict(list)
    for file in every:
        groups[top(file)].append(file)
    return list(groups.values())


def _merged(queues: dict[File, deque[int]], files: Sequence[Sequence[File]]) -> Iterator[int]:
    """Each chunk as soon as it is the next in all of its files. All files of one target have their chunks in the same order."""
    ready = deque(queue[0] for queue in queues.values() if queue)
    waiting: dict[int, int] = defaultdict(int)
    while ready:
        number = ready.popleft()
        waiting[number] += 1
        if waiting[number] < len(files[number]):
            continue
        yield number
        for file in files[number]:
            queue = queues[file]
            queue.popleft()
            if queue:
                ready.append(queue[0])
