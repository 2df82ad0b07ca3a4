"""Reads boxes of stored tensors, each element once, and hands them to sinks: the engine of everything but conversions.

::

    use                        sink                                            a unit
    restore                    memory of arrays (``restoring.regions``)        a chunk, or a box of it
    verify, fingerprint        sums (``engine.read_digests``)                  a chunk
    identify                   hashes of leaves (``identity.read_leaves``)     a block of leaves
    diff                       differences (``verification.pair_blocks``)      a block of two tensors, side by side

A unit is read band by band. A batch of units is one task of a worker: it has one arena, and its units use it one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec import Struct

from reshard.engine.buffers import Arena, ArenaPool, aligned_empty, lent
from reshard.engine.decode.box_plan import BoxPlan, StoredBox, plan_box
from reshard.engine.decode.box_stream import BandMemory, BoxStream
from reshard.engine.executor import run_tasks
from reshard.engine.limits import Limits
from reshard.errors import FormatError, StorageError, VerificationError
from reshard.formats.base import Reader
from reshard.geometry.grid import Box, Cuts

if TYPE_CHECKING:
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]

K = TypeVar("K")
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")

BATCH_BYTES = 8 << 20
BATCH_UNITS = 128
"""The bytes, or the units, from which on a batch is handed to a worker: handing one over costs as much as reading 100 KiB."""


class BandSink(Protocol[R_co]):
    """The taker of the bands of one unit.

    Attributes:
        is_dense: true if it wants bands without gaps between their rows.
    """

    is_dense: bool

    def direct(self, band: Box) -> Bytes | None:
        """Its memory for exactly the elements of ``band``, contiguous, into which they come; None if it has none."""
        ...

    def take(self, band: Box, *elements: Array) -> None:
        """Takes the elements of each side; unless they are in its own memory, they change after the call."""
        ...

    def done(self) -> R_co:
        """The result, after the last band."""
        ...


class BoxUnit(Struct, Generic[K], frozen=True):
    """Boxes of one shape that one worker reads side by side.

    Attributes:
        of: what the caller knows it by.
        edges: of chunks, at which bands end where they can.
        nbytes: its weight in a batch.
        memory_bytes: all that it takes, its sink included.
    """

    of: K
    sides: tuple[StoredBox, ...]
    plan: BoxPlan
    edges: Sequence[Cuts]
    nbytes: int
    memory_bytes: int

    @property
    def box(self) -> Box:
        return self.sides[0].box


class BoxBatch(Struct, Generic[K], frozen=True):
    """Units that one worker reads in order; they take ``memory_bytes`` until the last one ends."""

    units: tuple[BoxUnit[K], ...]
    memory_bytes: int


class Done(Struct, Generic[K, R_co], frozen=True):
    """A unit that was read, and what its sink made of it.

    Attributes:
        read_bytes: stored bytes that were read for it.
        damage: the reason why it could not be read, if the caller collects damage; else "".
    """

    unit: BoxUnit[K]
    result: R_co
    read_bytes: int
    damage: str = ""


def batched(units: Iterable[BoxUnit[K]]) -> Iterator[BoxBatch[K]]:
    """Every unit; small ones share a batch, which takes the memory of its largest."""
    batch: list[BoxUnit[K]] = []
    nbytes = 0
    for unit in units:
        batch.append(unit)
        nbytes += unit.nbytes
        if nbytes >= BATCH_BYTES or len(batch) >= BATCH_UNITS:
            yield _of(batch)
            batch, nbytes = [], 0
    if batch:
        yield _of(batch)


def _of(units: Sequence[BoxUnit[K]]) -> BoxBatch[K]:
    return BoxBatch(tuple(units), max(unit.memory_bytes for unit in units))


def read_boxes(
    batches: Iterable[BoxBatch[K]],
    open_sink: Callable[[BoxUnit[K]], BandSink[R]],
    readers: Sequence[Reader],
    limits: Limits,
    *,
    checks_all: bool = True,
    keeps_damage: bool = False,
) -> Generator[list[Done[K, R]], None, None]:
    """The units of each batch, read, as batches end.

    Args:
        readers: of the sides of each unit; none if their chunks are located.
        checks_all: true if raw chunks with skipped parts are read once more for their checksum.
        keeps_damage: true if a unit that cannot be read is a result.

    Raises the first error of any unit, after running batches have ended: CorruptError, naming tensor and chunk, if stored bytes are wrong;
    StorageError if they cannot be read.
    """
    pool = ArenaPool(limits.max_memory, limits.workers) if limits.executor is None else None
    sources = Sources(readers, checks_all=checks_all, keeps_damage=keeps_damage)
    work = partial(read_batch, open_sink=open_sink, sources=sources, pool=pool)
    ended = run_tasks(batches, work, _memory_of, limits.max_memory, limits.workers, limits.executor)
    with closing(ended):
        yield from ended


def _memory_of(batch: BoxBatch[Any]) -> int:
    return batch.memory_bytes


class Sources(Struct, frozen=True):
    """The checkpoints of a run, and how they are read (see ``read_boxes``)."""

    readers: Sequence[Reader]
    checks_all: bool = True
    keeps_damage: bool = False


def read_batch(
    batch: BoxBatch[K],
    open_sink: Callable[[BoxUnit[K]], BandSink[R]],
    sources: Sources,
    pool: ArenaPool | None = None,
) -> list[Done[K, R]]:
    """Reads the units of a batch in this thread; ``pool`` lends used buffers (None: fresh ones)."""
    nbytes = max([unit.plan.buffer_bytes for unit in batch.units])
    with lent(pool, nbytes, max(nbytes, batch.memory_bytes)) as arena:
        return [_read_unit(unit, open_sink(unit), sources, arena) for unit in batch.units]


def _read_unit(unit: BoxUnit[K], sink: BandSink[R], sources: Sources, arena: Arena) -> Done[K, R]:
    try:
        read_bytes = _hand_over(unit, sink, sources, arena)
    except (FormatError, StorageError, VerificationError) as error:
        if not sources.keeps_damage:
            raise
        return Done(unit, sink.done(), 0, str(error))
    return Done(unit, sink.done(), read_bytes)


def _hand_over(unit: BoxUnit[Any], sink: BandSink[Any], sources: Sources, arena: Arena) -> int:
    """Reads every band of a unit, and hands it to the sink; returns the stored bytes that were read."""
    arena.reset()
    streams = list(_streams(unit, sources, arena, is_dense=sink.is_dense))
    box, cut = unit.box, unit.plan.cut
    # An empty box is one empty band, so that its sink sees it.
    is_one_band = cut.size(box.shape) >= box.size
    try:
        for band in [box] if is_one_band else cut.bands(box, unit.edges):
            direct = sink.direct(band)
            sink.take(band, *[stream.take(band, direct) for stream in streams])
        return sum([stream.read_bytes for stream in streams])
    finally:
        for stream in streams:
            stream.close()


def _streams(
    unit: BoxUnit[Any], sources: Sources, arena: Arena, *, is_dense: bool
) -> Iterator[BoxStream]:
    plan = unit.plan
    scratch = arena.take(plan.scratch_bytes)
    encoded = arena.take(plan.encoded_bytes) if plan.encoded_bytes else None
    for number, side in enumerate(unit.sides):
        yield BoxStream(
            side,
            sources.readers[number] if sources.readers else None,
            BandMemory(arena.take(plan.band_bytes[number]), scratch, encoded),
            keeps_open=plan.keeps_open[number],
            checks_all=sources.checks_all,
            is_dense=is_dense,
        )


def fill_array(side: StoredBox, reader: Reader, out: Array, max_memory: int) -> None:
    """Fills ``out`` with a box, in this thread; errors as of ``plan_box`` and ``read_boxes``."""
    plan = plan_box(side, max_memory)
    scratch = aligned_empty(plan.scratch_bytes)
    memory = BandMemory(scratch[:0], scratch)
    with BoxStream(side, reader, memory, keeps_open=plan.keeps_open[0], checks_all=True) as stream:
        for band in plan.cut.bands(side.box, side.stored.spec.storage.cuts):
            stream.fill(out[band.relative_to(side.box.start).slices], band)
