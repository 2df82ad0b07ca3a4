"""The strategies by which one read of a tensor fills one target, or several at once.

Cuts that source and targets share divide a tensor into aligned blocks. Within a block, each source chunk can be decoded
once and each target chunk finished. Four strategies fill a block; the cheapest is chosen:

- whole, if the block is one small chunk in source and targets: nothing is cut;
- scatter, if the targets are raw: one source chunk per task, tiny buffers;
- weave, if the targets are raw but the rows of a single chunk are short: adjacent chunks along the trailing dimensions
  are decoded in lock step. The rows are then wide and need fewer writes and checksum calls;
- block: the target chunks of the block are assembled in memory. If they do not fit, the block is halved along the
  dimension that repeats the least decoding, until one target chunk is left.

Wanted pieces that share a read share its units, and each decoded band goes to all of them. If some are assembled in memory,
raw ones are still written piece by piece. They may want different boxes: if each chunk has many layers of a stacked tensor,
every layer may become a tensor of its own, and each chunk is decoded once for all of them.

Target chunks that span several pieces are assembled from all of them, each read in its turn (``joint_read``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from reshard.answers.shared import Strategy
from reshard.formats.contents import CHECKSUM
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece, spans_chunks
from reshard.planning.plans import Fill, Price, Side
from reshard.planning.read_box import (
    COPY_BYTES,
    ReadBox,
    SharedRead,
    WantedPiece,
    best_halving,
    first_halving,
)
from reshard.planning.task_cost import (
    BAND_BYTES,
    GATHERED_BYTES,
    READ_BYTES_PER_SECOND,
    SMALLEST_BAND_BYTES,
    TASK_BAND_BYTES,
    TURNED_BAND_BYTES,
    Reading,
    TaskBuffers,
    UnpricedFill,
    chunks_per_unit,
    decoded_bytes,
    gains_at_once,
    is_turned,
    price,
    task_bytes,
    touched_bytes,
)

__all__ = [
    "COPY_BYTES",
    "SharedRead",
    "WantedPiece",
    "cheapest",
    "possible_reads",
    "seconds",
    "smallest_memory",
]


def cheapest(
    wanted_pieces: Sequence[WantedPiece], memory: int, max_open_chunks: int
) -> SharedRead | None:
    """The fills of least processor time that serve all wanted pieces from one read, within ``memory`` per task.

    All wanted pieces read one tensor, in one view. None if nothing fits.
    """
    fitting = [
        w for w in possible_reads(wanted_pieces, memory, max_open_chunks) if w.task_bytes <= memory
    ]
    return min(fitting, key=_processor_seconds, default=None)


def seconds(read: SharedRead) -> float:
    """Seconds that a read takes, filling included; only for comparing."""
    decoded = read.fills[0].price.decoded_bytes
    return _processor_seconds(read) + decoded / READ_BYTES_PER_SECOND


def _processor_seconds(read: SharedRead) -> float:
    return sum(fill.price.seconds for fill in read.fills)


def possible_reads(
    wanted_pieces: Sequence[WantedPiece], memory: int, max_open_chunks: int
) -> Iterator[SharedRead]:
    """Every read worth pricing; if none fits into ``memory``, also those that need the least."""
    identical = sum(map(_is_identical, wanted_pieces))
    if identical == len(wanted_pieces):
        yield _copy(wanted_pieces)
    if identical:
        return  # chunks that are copied encoded are never decoded, so there is nothing to share
    if all(map(_is_chunk_by_chunk, wanted_pieces)):
        yield _whole(wanted_pieces, memory)  # first: at equal price it has the least overhead
    read_box, raw = ReadBox.of(wanted_pieces), _raw(wanted_pieces)
    if raw == len(wanted_pieces):
        for first_open_dim in _first_open_dims(read_box):
            yield from _scatter(read_box, memory, first_open_dim, max_open_chunks)
    elif raw:
        yield from _block(read_box, _in_pieces_if_raw(wanted_pieces), memory)
    if not any(map(_shares_chunks, wanted_pieces)):
        yield from _block(read_box, ["block"] * len(wanted_pieces), memory)


def _raw(wanted_pieces: Sequence[WantedPiece]) -> int:
    """The number of raw targets."""
    return sum([wanted.target.raw for wanted in wanted_pieces])


def _in_pieces_if_raw(wanted_pieces: Sequence[WantedPiece]) -> list[Strategy]:
    return ["scatter" if wanted.target.raw else "block" for wanted in wanted_pieces]


def _first_open_dims(read_box: ReadBox) -> Sequence[int]:
    """The first dimensions along which source chunks may be decoded side by side, the last first.

    Only bands that all targets take whole, and that are boxes of the source, are put side by side. In all other cases the
    dimension is the rank, so that one chunk is open.
    """
    is_plain = read_box.is_one and read_box.wanted_pieces[0].piece.source_view is None
    ranks = range(len(read_box.box.start), 0, -1)
    return ranks if is_plain else ranks[:1]


def _shares_chunks(wanted: WantedPiece) -> bool:
    """True if other pieces fill the rest of a raw target chunk, so that this one cannot assemble it."""
    return spans_chunks(wanted.target.spec, [wanted.piece])


def _is_identical(wanted: WantedPiece) -> bool:
    """True if every target chunk is some source chunk, encoded alike except perhaps for a checksum."""
    source, target = wanted.source, wanted.target
    alike = target.codec in (source.codec, f"{source.codec}{CHECKSUM}")
    is_padded_alike = source.spec.chunk_shape == target.spec.chunk_shape
    return not source.raw and alike and is_padded_alike and _has_equal_chunks(wanted)


def _has_equal_chunks(wanted: WantedPiece) -> bool:
    """True if every target chunk has the elements of some source chunk."""
    piece, source, target = wanted.piece, wanted.source.spec, wanted.target.spec
    if piece.is_computed or source.storage != target.storage:
        return False
    whole = Piece.whole(source, target, checkpoint=piece.checkpoint)
    return piece == replace(whole, source=piece.source, target=piece.target)


def _is_chunk_by_chunk(wanted: WantedPiece) -> bool:
    """True if chunks differ only in their encoding, are small, and have no padding to clear."""
    return (
        _has_equal_chunks(wanted)
        and wanted.source.spec.chunk_bytes <= BAND_BYTES
        and not _has_padding(wanted.source.spec)
        and not _has_padding(wanted.target.spec)
    )


def _has_padding(spec: TensorSpec) -> bool:
    return spec.chunk_shape is not None and not _divides(spec.chunk_shape, spec.shape)


def _divides(chunk: Sequence[int], shape: Sequence[int]) -> bool:
    return all(n % c == 0 for n, c in zip(shape, chunk, strict=True))


def _whole(wanted_pieces: Sequence[WantedPiece], memory: int) -> SharedRead:
    units, chunk = wanted_pieces[0].target.spec.storage, wanted_pieces[0].source.spec.chunk_bytes
    read_box = ReadBox.of(wanted_pieces)
    unpriced = read_box.unpriced(["whole"] * len(wanted_pieces), units)
    return read_box.read(
        unpriced, units, _buffers(read_box.reading(units), unpriced, memory, chunk, chunk)
    )


def _copy(wanted_pieces: Sequence[WantedPiece]) -> SharedRead:
    read_box, first = ReadBox.of(wanted_pieces), wanted_pieces[0]
    units = first.piece.target_grid(first.target.spec.storage)
    need = max(wanted.copy_bytes for wanted in wanted_pieces)
    buffers = TaskBuffers(SMALLEST_BAND_BYTES, False, need)
    return read_box.read(read_box.unpriced(["copy"] * len(wanted_pieces), units), units, buffers)


def _scatter(
    read_box: ReadBox, memory: int, first_open_dim: int, max_open_chunks: int
) -> Iterator[SharedRead]:
    """Reads that decode source chunks side by side from dimension ``first_open_dim`` on: all, half of them, …

    If ``first_open_dim`` equals the rank, one chunk is open, and the choice is a plain scatter.
    """
    source, source_grid = read_box.wanted_pieces[0].source, read_box.source
    units: Grid | None = _widest(source_grid, first_open_dim)
    while units is not None:
        open_chunks = chunks_per_unit(units, source_grid)
        if open_chunks == 1 and first_open_dim < len(units.shape):
            return
        strategy: Strategy = "weave" if open_chunks > 1 else "scatter"
        if open_chunks <= max_open_chunks:
            unpriced = read_box.unpriced([strategy] * len(read_box.wanted_pieces), units)
            least = _least_band(source, open_chunks, first_open_dim)
            buffers = _buffers(read_box.reading(units), unpriced, memory, least)
            yield read_box.read(unpriced, units, buffers)
        units = first_halving(units, source_grid)  # rows stay as wide as possible


def _widest(source_grid: Grid, first_open_dim: int) -> Grid:
    """Source chunks joined along the dimensions in which several are open."""
    whole = Grid.whole(source_grid.shape)
    cuts = source_grid.cuts[:first_open_dim] + whole.cuts[first_open_dim:]
    return Grid(source_grid.shape, cuts)


def _least_band(source: Side, open_chunks: int, first_open_dim: int) -> int:
    """Bytes of the smallest band: whole rows of the dimensions in which several chunks are open; one element of a single chunk."""
    chunk = source.spec.chunk_shape or source.spec.storage.largest
    return max(
        open_chunks * math.prod(chunk[first_open_dim:]) * source.spec.itemsize, SMALLEST_BAND_BYTES
    )


def _buffers(
    reading: Reading,
    unpriced: Sequence[UnpricedFill],
    memory: int,
    least: int = SMALLEST_BAND_BYTES,
    most: int = TASK_BAND_BYTES,
) -> TaskBuffers:
    """The pace of a task: chunks are decoded at once if that gains and fits; else in streams, in the widest bands that fit,
    or the smallest."""
    if gains_at_once(reading, unpriced):
        at_once = _widest_bands(reading, unpriced, memory, least, most, at_once=True)
        if at_once.task_bytes <= memory:
            return at_once
    return _widest_bands(reading, unpriced, memory, least, most, at_once=False)


def _widest_bands(
    reading: Reading,
    unpriced: Sequence[UnpricedFill],
    memory: int,
    least: int,
    most: int,
    *,
    at_once: bool,
) -> TaskBuffers:
    need = partial(task_bytes, reading, unpriced, at_once=at_once)
    turned = [fill for fill in unpriced if is_turned(fill.piece)]
    if most == TASK_BAND_BYTES and not all(fill.gathers for fill in turned):
        most = TURNED_BAND_BYTES
    band = max(most, least)
    gathered = GATHERED_BYTES if any(fill.gathers for fill in turned) else 0
    while gathered and need(band, gathered_bytes=gathered) > memory:
        gathered = gathered // 2 if gathered > 2 * band else 0
    while band > least and need(band) > memory:
        band = max(least, band // 2)
    return TaskBuffers(band, at_once, need(band, gathered_bytes=gathered), gathered)


def _block(read_box: ReadBox, strategies: Sequence[Strategy], memory: int) -> Iterator[SharedRead]:
    # A chunk is assembled from all of its bytes; pieces may be cut anywhere.
    assembled = read_box.assembled(strategies)
    slices = read_box.wanted_pieces[0].target.in_order
    if slices is None:
        units = read_box.source.common(assembled)
    else:
        units = _aligned_rows(read_box.wanted_pieces[0], slices, assembled)
    while True:
        unpriced = read_box.unpriced(strategies, units)
        buffers = _buffers(read_box.reading(units), unpriced, memory)
        if slices is None:
            halved = best_halving(read_box.decoded_bytes, units, assembled)
        else:
            halved = first_halving(units, assembled)
        if halved is None:
            break
        is_small = slices is None or not _is_halved_for_free(read_box, units, halved)
        if is_small and buffers.task_bytes <= memory:
            break
        units = halved
    yield read_box.read(unpriced, units, buffers)


def _aligned_rows(wanted: WantedPiece, slices: Grid, assembled: Grid) -> Grid:
    """The slices, cut in their first dimension that has several chunks wherever a source chunk ends too."""
    piece = wanted.piece
    units = piece.target_grid(slices)
    source = piece.source_grid(wanted.source.spec.storage)
    for dim, (cuts, finer) in enumerate(zip(units.cuts, assembled.cuts, strict=True)):
        if finer != cuts:
            common = set(finer) & {*source.cuts[dim], *cuts}
            return Grid(
                units.shape, (*units.cuts[:dim], tuple(sorted(common)), *units.cuts[dim + 1 :])
            )
    return units


def _is_halved_for_free(read_box: ReadBox, units: Grid, halved: Grid) -> bool:
    """True if two halves cost no more reading than the whole. In ordered writing, one half is then sent while the next is read."""
    is_raw = read_box.wanted_pieces[0].source.raw
    return is_raw or read_box.decoded_bytes(halved) == read_box.decoded_bytes(units)


def smallest_memory(wanted: WantedPiece) -> int:
    """The least memory with which ``wanted`` can be carried out."""
    return min(read.task_bytes for read in possible_reads([wanted], 0, max_open_chunks=1))


def joint_read(wanted_pieces: Sequence[WantedPiece], memory: int) -> SharedRead:
    """One fill of all pieces of a tensor: units are boxes of the target, as large as ``memory`` allows, but at least one chunk."""
    target = wanted_pieces[0].target
    units = Grid.whole(target.spec.shape) if target.in_order is None else target.in_order
    joint = _Joint.of(wanted_pieces, units, memory)
    while (
        joint.buffers.task_bytes > memory
        and (halved := _halved(wanted_pieces, joint.units)) is not None
    ):
        joint = _Joint.of(wanted_pieces, halved, memory)
    pieces, sources = tuple(r.piece for r in wanted_pieces), tuple(r.source for r in wanted_pieces)
    buffers, cost = joint.buffers, joint.price(target)
    fill = Fill(pieces, sources, target, "block", joint.units, buffers.band_bytes, cost)
    return SharedRead((fill,), joint.units)


def _halved(wanted_pieces: Sequence[WantedPiece], units: Grid) -> Grid | None:
    """The units in halves; None if each is one chunk, or one part of a slice that is written in order."""
    target = wanted_pieces[0].target
    if target.in_order is None:
        return best_halving(partial(_joint_bytes, wanted_pieces), units, target.spec.storage)
    return first_halving(units, target.spec.storage)


class _Joint(Struct, frozen=True):
    """Pieces that are assembled together, a reading and an unpriced fill for each."""

    units: Grid
    readings: Sequence[Reading]
    unpriced: Sequence[UnpricedFill]
    buffers: TaskBuffers

    @classmethod
    def of(cls, wanted_pieces: Sequence[WantedPiece], units: Grid, memory: int) -> _Joint:
        readings = [_reading_of(wanted, units) for wanted in wanted_pieces]
        unpriced = [
            UnpricedFill("block", r.piece, r.source, r.target, reading.units)
            for r, reading in zip(wanted_pieces, readings, strict=True)
        ]
        return cls(units, readings, unpriced, _joint_buffers(readings, unpriced, units, memory))

    def price(self, target: Side) -> Price:
        """The cost of all pieces together; each chunk is written once."""
        prices = [
            price(d, r, self.buffers) for d, r in zip(self.unpriced, self.readings, strict=True)
        ]
        return Price(
            self.units.count,
            sum(map(decoded_bytes, self.readings)),
            sum(map(touched_bytes, self.readings)),
            sum(p.written_bytes for p in prices),
            target.spec.storage.count * target.copies,
            self.buffers.task_bytes,
            sum(p.seconds for p in prices),
        )


def _joint_buffers(
    readings: Sequence[Reading], unpriced: Sequence[UnpricedFill], units: Grid, memory: int
) -> TaskBuffers:
    """The pace of pieces read one after the other: a task needs the memory of the largest piece, and all of its target chunks."""
    target = unpriced[0].target.spec
    chunks = chunks_per_unit(units, target.storage)

    def need(band: int) -> int:
        most = max(
            task_bytes(reading, [fill], band) - fill.chunks * target.chunk_bytes
            for reading, fill in zip(readings, unpriced, strict=True)
        )
        return most + chunks * target.chunk_bytes

    band = TASK_BAND_BYTES
    while band > SMALLEST_BAND_BYTES and need(band) > memory:
        band //= 2
    return TaskBuffers(band, False, need(band))


def _reading_of(wanted: WantedPiece, units: Grid) -> Reading:
    """The reading of one of a target's pieces by units of the target."""
    piece = wanted.piece
    grid = piece.source_grid(wanted.source.spec.storage)
    start = piece.source_box.start
    return Reading(wanted.source, grid, piece.target_grid(units), piece.source_view, start)


def _joint_bytes(wanted_pieces: Sequence[WantedPiece], units: Grid) -> int:
    return sum(decoded_bytes(_reading_of(wanted, units)) for wanted in wanted_pieces)
