"""Restores the tensors that a map makes of a checkpoint: names, order and shape change on the way from chunks to buffers.

Where buffers become the result, the source is read once. Where they are copied to devices, they count against the budget, and the
tensors are made in as many rounds as it takes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from reshard.engine.decode.chunk_reader import check_recorded
from reshard.engine.limits import Limits
from reshard.engine.progress import Progress
from reshard.engine.task import CastStats
from reshard.errors import MemoryBudgetError
from reshard.formats.base import Reader
from reshard.formats.contents import Encoding, StoredTensor
from reshard.geometry.dtypes import element_dtype
from reshard.geometry.grid import Box, Grid
from reshard.layout.changes import Changes
from reshard.maps.given_map import GivenMap
from reshard.maps.make import Keeping, MadeTensors, in_parts, make_tensors
from reshard.maps.mapped import Mapped, MappedTensor
from reshard.maps.mapped_checkpoint import in_dtype, leaf_of, mapped_tensors, refuse_unequal
from reshard.restoring.match import SourceLeaf
from reshard.restoring.regions import Buffer, RegionIndex
from reshard.restoring.tensor_read import Restored, TensorRead

if TYPE_CHECKING:
    from reshard.restoring.regions import Array

_NOTHING = Restored(None, 0, 0, CastStats(), is_verified=False)

_SHARE = 2
"""Buffers that are copied to devices take at most half of the budget; the other half is for reading."""


def mapped_leaves(
    reader: Reader, given: GivenMap, changes: Changes
) -> tuple[tuple[SourceLeaf, ...], Mapped]:
    """The leaves that a map makes of a checkpoint, as if they were stored; PlanError where it does not fit."""
    mapping, _ = mapped_tensors(reader, given, changes)
    return tuple(_leaf(reader, made) for made in mapping.tensors), mapping


def _leaf(reader: Reader, made: MappedTensor) -> SourceLeaf:
    sources = [reader.tensors[name] for name in made.sources]
    is_key = any(stored.is_key for stored in sources)
    is_cast = any(stored.spec.dtype != made.spec.dtype for stored in sources)
    stored = StoredTensor(
        made.spec, Encoding(), bytes(made.spec.itemsize), may_be_missing=False, is_key=is_key
    )
    return SourceLeaf(
        made.spec.name,
        leaf_of(reader, made),
        stored,
        made.spec.dtype if is_cast else None,
        any(piece.saturate for piece in made.pieces),
    )


class _ReadShards(Struct):
    """The buffers of one tensor in a round, by the numbers of their regions."""

    read: TensorRead
    buffers: Mapping[int, Buffer]
    touching: RegionIndex

    @classmethod
    def of(cls, read: TensorRead, numbers: Sequence[int]) -> _ReadShards:
        regions, spec = read.output.regions, read.stored.spec
        buffers = {n: Buffer(regions[n], read.dtype, read.dtype, into=read.into) for n in numbers}
        return cls(read, buffers, RegionIndex(regions, tuple(numbers), spec.shape))

    def needs(self, box: Box) -> bool:
        """True if a buffer takes elements of ``box``."""
        return any(self.buffers[n].count_in(box) for n in self.touching.touching(box))

    def keep(self, box: Box, elements: Array) -> None:
        """Copies the elements of a box into each buffer that has them."""
        bits = elements.view(element_dtype(self.read.dtype, is_cast=False))
        for number in self.touching.touching(box):
            self.buffers[number].put(bits, box)


def restore_mapped(
    reads: Sequence[TensorRead],
    mapping: Mapped,
    reader: Reader,
    limits: Limits,
    verify: bool,
    progress: Callable[[Progress], None] | None,
) -> list[Restored]:
    """Makes each tensor in its buffers; returns one result each, in order.

    Raises CorruptError where a source tensor that is read whole and once does not have its recorded digest,
    VerificationError where two that must be equal are not, MemoryBudgetError before anything is read.
    """
    made = {tensor.spec.name: tensor for tensor in mapping.tensors}
    own = [_made(read, made[read.name]) for read in reads]
    results = [_NOTHING] * len(reads)
    placed: list[list[object]] = [[None] * len(read.output.regions) for read in reads]
    seen: dict[str, str] = {}
    rounds = list(_rounds(reads, limits.max_memory // _SHARE))
    is_all = len(rounds) == 1 and all(read.covers for read in reads)
    for wanted in rounds:
        shards = {
            number: _ReadShards.of(reads[number], regions) for number, regions in wanted.items()
        }
        tensors = [own[n] for n in wanted]
        found = _make(tensors, list(shards.values()), reader, limits, progress, is_all=is_all)
        seen |= {name: digest for (_, name), digest in found.books.source_digests().items()}
        _place(shards, placed)
        for number, restored in zip(wanted, _results(found), strict=True):
            results[number] = _sum(results[number], restored)
    verified = _verified(reader, mapping, seen, limits) if verify else set()
    every = zip(reads, own, results, placed, strict=True)
    return [_assembled(*one, verified) for one in every]


def _made(read: TensorRead, tensor: MappedTensor) -> MappedTensor:
    """The tensor in its restored dtype, made in parts as large as its regions: all shards but the last have one size."""
    if read.dtype != tensor.spec.dtype:
        tensor = in_dtype(tensor, read.dtype, saturate=read.saturate)
    boxes = [region.box.shape for region in read.output.regions if region.size]
    largest = [max(sizes) for sizes in zip(*boxes, strict=True)] or list(tensor.spec.shape)
    parts = Grid.regular(tensor.spec.shape, [max(1, n) for n in largest])
    return replace(tensor, spec=in_parts(tensor.spec, parts))


def _rounds(reads: Sequence[TensorRead], most_bytes: int) -> Iterator[dict[int, list[int]]]:
    """Rounds of regions by tensor: staged regions share a round up to ``most_bytes``, all others are in the current one."""
    wanted: dict[int, list[int]] = defaultdict(list)
    staged = 0
    for number, read in enumerate(reads):
        sizes = read.staged_bytes
        wanted[number] = []
        for region, nbytes in enumerate(sizes):
            if staged and staged + nbytes > most_bytes:
                yield dict(wanted)
                wanted, staged = defaultdict(list), 0
            wanted[number].append(region)
            staged += nbytes
    if wanted:
        yield dict(wanted)


def _make(
    tensors: Sequence[MappedTensor],
    shards: Sequence[_ReadShards],
    reader: Reader,
    limits: Limits,
    progress: Callable[[Progress], None] | None,
    *,
    is_all: bool,
) -> MadeTensors:
    by_name = {each.read.name: each for each in shards}
    staged = sum(each.read.staged_bytes[number] for each in shards for number in each.buffers)
    keeping = Keeping(
        lambda name, box, elements: by_name[name].keep(box, elements),
        None if is_all else lambda name, box: by_name[name].needs(box),
    )
    left = replace(limits, max_memory=limits.max_memory - staged)
    try:
        return make_tensors(reader, tensors, left, keeping, progress, "restoring")
    except MemoryBudgetError as error:
        if not staged:
            raise
        smallest = error.smallest_bytes + staged
        raise MemoryBudgetError(
            f"{error}; {staged >> 20} MiB more are taken by shards on their way to a device: allow {smallest >> 20}MiB in all",
            smallest_bytes=smallest,
        ) from error


def _place(shards: Mapping[int, _ReadShards], placed: list[list[object]]) -> None:
    for number, each in shards.items():
        for region, buffer in each.buffers.items():
            placed[number][region] = each.read.output.place(region, buffer.array)


def _results(found: MadeTensors) -> Iterator[Restored]:
    """One result for each tensor of a round. Tensors share their reads: the first has the bytes of all."""
    amounts = (found.read_bytes, found.needed_bytes)
    for cast in found.books.casts():
        yield Restored(None, *amounts, cast, is_verified=False)
        amounts = (0, 0)


def _sum(a: Restored, b: Restored) -> Restored:
    return Restored(
        None, a.read_bytes + b.read_bytes, a.needed_bytes + b.needed_bytes, a.cast + b.cast, is_verified=False
    )  # fmt: skip


def _assembled(
    read: TensorRead,
    tensor: MappedTensor,
    result: Restored,
    placed: Sequence[object],
    verified: set[str],
) -> Restored:
    is_verified = bool(tensor.sources) and verified.issuperset(tensor.sources)
    return replace(result, value=read.output.assemble(placed), is_verified=is_verified)


def _verified(reader: Reader, mapping: Mapped, seen: Mapping[str, str], limits: Limits) -> set[str]:
    """The source tensors whose digests are the recorded ones; raises the errors of ``restore_mapped``."""
    for name, digest in seen.items():
        check_recorded(name, digest, reader.tensors[name].digest or digest)
    refuse_unequal(reader, mapping.equal, seen, limits)
    return {name for name in seen if reader.tensors[name].digest}
