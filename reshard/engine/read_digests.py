"""Digests of stored tensors: each chunk is decoded once, in bounded memory, by all workers.

Copies of a slice, which nothing else reads, are compared with the one that is decoded. Ranges with a CRC that hold elements of
several tensors, or hold them in another order, are read once more for that CRC.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.checksums.crc import READ_BYTES, range_crc32c
from reshard.checksums.sums import digest_text, sum_of_box
from reshard.engine.cast import converted
from reshard.engine.decode.box_plan import StoredBox, quickest_memory, stream_memory
from reshard.engine.executor import run_tasks
from reshard.engine.limits import Limits
from reshard.engine.progress import Progress, Stage, tell_bytes
from reshard.engine.read_boxes import BoxUnit, batched, read_boxes
from reshard.engine.read_tasks import REQUEST_WEIGHT
from reshard.engine.recorded_ranges import bytes_of_ranges, checked_ranges, unlike_text
from reshard.engine.write.target_digest import slabs
from reshard.errors import (
    CorruptError,
    FormatError,
    MemoryBudgetError,
    StorageError,
)
from reshard.formats.base import Reader
from reshard.formats.contents import Encoding, Extent, SourceChunk, codec_name
from reshard.geometry.dtypes import element_dtype, numpy_dtype
from reshard.geometry.grid import Box, Index
from reshard.layout.changes import Cast
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.task_cost import CAST_SCRATCH_BYTES
from reshard.storage.location import open_file

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


class _Summed(Struct, frozen=True, kw_only=True):
    """The linear parts of checksums of some chunks of a tensor, or of all.

    Attributes:
        crc: of the tensor's digest.
        cast: of the digest of the cast tensor.
        recorded: of the checksum that the format recorded.
    """

    crc: int = 0
    cast: int = 0
    recorded: int = 0

    def __add__(self, other: _Summed) -> _Summed:
        return _Summed(
            crc=self.crc ^ other.crc,
            cast=self.cast ^ other.cast,
            recorded=self.recorded ^ other.recorded,
        )


class SumSink:
    """Sums up the elements of a chunk, and those of its cast (a ``BandSink``); keeps none."""

    is_dense = False

    def __init__(self, unit: BoxUnit[Cast | None]) -> None:
        (side,) = unit.sides
        self._stored = side.stored
        self._cast = unit.of
        self._found = _Summed()

    def direct(self, _: Box) -> None:
        """None, since it keeps no elements."""

    def take(self, band: Box, *elements: Array) -> None:
        """Sums up a band."""
        (found,), shape, crcs = elements, self._stored.spec.shape, self._stored.crcs
        self._found = self._found + _Summed(
            crc=sum_of_box(found, band, shape),
            cast=0 if self._cast is None else self._of_cast(found, band, self._cast),
            recorded=0 if crcs is None else crcs.sum_of_box(found, band, shape),
        )

    def _of_cast(self, elements: Array, band: Box, cast: Cast) -> int:
        spec, crc = self._stored.spec, 0
        values = elements.view(element_dtype(spec.dtype, is_cast=True))
        for slab, part in slabs(values, band):
            found = converted(slab, numpy_dtype(cast.dtype), saturate=cast.saturate)
            crc ^= sum_of_box(found, part, spec.shape)
        return crc

    def done(self) -> _Summed:
        """The sums of the chunk."""
        return self._found


class Digests(Struct, frozen=True):
    """CRC-64/NVME of tensors' row-major bytes, by name, 16 hex digits.

    Attributes:
        stored: as they are stored.
        cast: of the cast tensor, for each cast that was given.
    """

    stored: dict[str, str]
    cast: dict[str, str]


def tensor_digests(
    reader: Reader,
    limits: Limits,
    names: Collection[str] | None = None,
    progress: Callable[[Progress], None] | None = None,
    *,
    damage: dict[str, str] | None = None,
    stage: Stage = "reading back",
) -> dict[str, str]:
    """CRC-64/NVME of each named tensor's row-major bytes as they are stored now, 16 hex digits.

    Args:
        damage: gets the names of tensors that cannot be read, each with the first reason; they have
            no digest then. With None the first such tensor is an error.

    Raises CorruptError, naming tensor and chunk, if a chunk does not decode or copies of a slice differ;
    MemoryBudgetError, before anything is read, if ``max_memory`` is too small for a chunk.
    """
    return digests_with_casts(
        reader, limits, names, {}, progress, damage=damage, stage=stage
    ).stored


def digests_with_casts(
    reader: Reader,
    limits: Limits,
    names: Collection[str] | None,
    casts: Mapping[str, Cast],
    progress: Callable[[Progress], None] | None = None,
    *,
    damage: dict[str, str] | None = None,
    stage: Stage = "reading back",
) -> Digests:
    """Digests as of ``tensor_digests``, and from the same reading those of the cast tensors of ``casts``."""
    listed = [n for n in reader.tensors if names is None or n in names]
    stored = reader.tensors
    kinds = ((stored[n].spec, stored[n].encoding) for n in listed)
    check_decodable(kinds, limits, CAST_SCRATCH_BYTES if casts else 0)
    sums = dict.fromkeys(listed, _Summed())
    tell = tell_bytes(_bytes_to_read(reader, listed), stage, progress)
    units = (u for n in listed for u in _units_or_damage(reader, n, casts.get(n), limits, damage))
    keeps_damage = damage is not None
    with closing(
        read_boxes(batched(units), SumSink, (), limits, keeps_damage=keeps_damage)
    ) as ended:
        for results in ended:
            for done in results:
                name = done.unit.sides[0].stored.spec.name
                sums[name] = sums[name] + done.result
                _note_damage(name, done.damage, damage)
            tell(name, sum([done.unit.sides[0].nbytes for done in results]))
    for name, found in sums.items():
        crcs = stored[name].crcs
        is_alike = crcs is None or crcs.total == found.recorded
        _note_damage(name, "" if is_alike else unlike_text(reader, name), damage)
    _read_besides(reader, listed, limits, tell, damage)
    for name in damage or ():
        sums.pop(name, None)
    return Digests(
        {n: digest_text(found.crc, stored[n].spec.nbytes) for n, found in sums.items()},
        {
            n: digest_text(found.cast, replace(stored[n].spec, dtype=casts[n].dtype).nbytes)
            for n, found in sums.items()
            if n in casts
        },
    )


def sums_of_chunks(
    reader: Reader,
    chunks: Iterable[tuple[str, Index]],
    limits: Limits,
    progress: Callable[[Progress], None] | None = None,
) -> dict[str, int]:
    """The sums of the elements of some chunks, by tensor: of all chunks of a tensor, by XOR, the linear part of its digest.

    Args:
        chunks: the tensor and the index of each.

    Raises as ``tensor_digests``.
    """
    by_tensor: dict[str, list[Index]] = {}
    for name, index in chunks:
        by_tensor.setdefault(name, []).append(index)
    specs = {name: reader.tensors[name].spec for name in by_tensor}
    total = sum(
        specs[n].storage.box(i).size * specs[n].itemsize for n, of in by_tensor.items() for i in of
    )
    tell = tell_bytes(total, "reading back", progress)
    sums = dict.fromkeys(by_tensor, 0)
    units = (u for name, of in by_tensor.items() for u in _units(reader, name, None, limits, of))
    with closing(read_boxes(batched(units), SumSink, (), limits)) as ended:
        for results in ended:
            for done in results:
                sums[done.unit.sides[0].stored.spec.name] ^= done.result.crc
            tell("", sum([done.unit.sides[0].nbytes for done in results]))
    return sums


def _bytes_to_read(reader: Reader, listed: Sequence[str]) -> int:
    """The bytes of all elements, and of ranges and copies that are read besides."""
    elements = sum(reader.tensors[name].spec.nbytes for name in listed)
    return elements + bytes_of_copies(reader, listed) + bytes_of_ranges(reader, listed)


def _read_besides(
    reader: Reader,
    listed: Sequence[str],
    limits: Limits,
    tell: Callable[[str, int], None],
    damage: dict[str, str] | None,
) -> None:
    """Reads bytes that decoding does not read: copies of slices, and ranges that have a checksum of their own."""
    for copies in compared_copies(reader, listed, limits):
        tell(copies.name, copies.nbytes)
        _note_damage(copies.name, copies.difference, damage)
    for checked in checked_ranges(reader, listed, limits):
        tell(checked.names[0], checked.nbytes)
        for name in checked.names:
            _note_damage(name, checked.damage_of(name), damage)


def _note_damage(name: str, found: str, damage: dict[str, str] | None) -> None:
    """Keeps the first reason why a tensor cannot be read; raises CorruptError if ``damage`` is None."""
    if not found:
        return
    if damage is None:
        raise CorruptError(found)
    damage.setdefault(name, found)


def _units_or_damage(
    reader: Reader,
    name: str,
    cast: Cast | None,
    limits: Limits,
    damage: dict[str, str] | None,
) -> Iterator[BoxUnit[Cast | None]]:
    """The tensor's chunks, up to the first that cannot be located; its reason goes into ``damage``."""
    try:
        yield from _units(reader, name, cast, limits)
    except (FormatError, StorageError) as error:
        if damage is None:
            raise
        damage.setdefault(name, str(error))


def _units(
    reader: Reader,
    name: str,
    cast: Cast | None,
    limits: Limits,
    indices: Iterable[Index] | None = None,
) -> Iterator[BoxUnit[Cast | None]]:
    """The chunks of a tensor; ``indices``: those of some of them."""
    tensor = reader.tensors[name]
    spec, encoding = tensor.spec, tensor.encoding
    # Without threads that share buffers, filling new memory would cost more than decoding at once gains.
    share = limits.max_memory // limits.workers if limits.executor is None else 0
    memory = quickest_memory(encoding, spec.chunk_bytes, share, is_cast=cast is not None)
    waiting = REQUEST_WEIGHT if encoding.read_ahead_bytes else 0
    for index in spec.storage.indices() if indices is None else indices:
        chunk = SourceChunk.at(index, spec, reader)
        side = StoredBox(tensor, chunk.box, spec.dtype, chunk=chunk)
        plan = memory.plan(chunk, chunk.box, encoding, spec.itemsize)
        weight = side.nbytes + waiting
        yield BoxUnit(cast, (side,), plan, spec.storage.cuts, weight, memory.total)


def check_decodable(
    tensors: Iterable[tuple[TensorSpec, Encoding]], limits: Limits, more_bytes: int = 0
) -> None:
    """Raises MemoryBudgetError if a chunk of a tensor cannot be decoded within the limits.

    ``more_bytes`` are needed besides.
    """
    needs = (
        (stream_memory(encoding, spec.chunk_bytes).total + more_bytes, spec.name, encoding)
        for spec, encoding in tensors
    )
    need, name, encoding = max(needs, key=itemgetter(0), default=(0, "", Encoding()))
    if need > limits.max_memory:
        mib = -(-need // (1 << 20))
        raise MemoryBudgetError(
            f"to read {name!r}, of which a chunk is decoded as a whole ({codec_name(encoding)}), takes {mib} MiB, "
            f"but {limits.max_memory / (1 << 20):.4g} MiB are allowed; allow max_memory of {mib}MiB",
            smallest_bytes=mib << 20,
        )


class _Copies(Struct, frozen=True):
    """The places of one slice."""

    name: str
    extents: tuple[Extent, ...]

    @property
    def nbytes(self) -> int:
        return sum(extent.length for extent in self.extents)


class ComparedCopies(Struct, frozen=True):
    """The copies of one slice of a tensor.

    Attributes:
        nbytes: of all copies together.
        difference: the reason why a copy differs from the first one, or cannot be read; "" if all are equal.
    """

    name: str
    nbytes: int
    difference: str


def bytes_of_copies(reader: Reader, names: Collection[str]) -> int:
    """The bytes that ``compared_copies`` reads."""
    return sum(copies.nbytes for copies in _listed(reader, names))


def compared_copies(
    reader: Reader, names: Collection[str], limits: Limits
) -> Iterator[ComparedCopies]:
    """Compares all copies of each slice with the first one, which is also read and checked as the tensor's own."""
    results = run_tasks(
        _listed(reader, names),
        _compared,
        lambda _: READ_BYTES,
        limits.max_memory,
        limits.workers,
        limits.executor,
    )
    with closing(results):
        yield from results


def _listed(reader: Reader, names: Collection[str]) -> Iterator[_Copies]:
    return (_Copies(name, extents) for name in names for extents in reader.copies(name))


def _compared(copies: _Copies) -> ComparedCopies:
    return ComparedCopies(copies.name, copies.nbytes, _difference(copies))


def _difference(copies: _Copies) -> str:
    first, *others = copies.extents
    try:
        expected = _crc32c(first)
        other = next((extent for extent in others if _crc32c(extent) != expected), None)
    except StorageError as error:
        return str(error)
    if other is None:
        return ""
    return (
        f"tensor {copies.name!r}: {other.path} holds other bytes at {other.offset:,} than {first.path} at "
        f"{first.offset:,}, but both should hold the same slice; restore the damaged file from a copy"
    )


def _crc32c(extent: Extent) -> int | None:
    with closing(open_file(extent.path, extent.version)) as file:
        return range_crc32c(file.read, extent.offset, extent.length)
