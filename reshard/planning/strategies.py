"""The strategies by which one read of a tensor fills one target, or several at once.

Cuts that source and targets share divide a tensor into aligned blocks. Within a block, each source chunk can be decoded
once and each target chunk finished. Four strategies fill a block; the cheapest is chosen:

- whole, if the block is one small chunk in source and targets: nothing is cut;
- scatter, if the targets are raw: one source chunk per task, tiny buffers;
- weave, if the targets are raw but the rows of a single chunk are short: adjacent chunks along the trailing dimensions
  are decoded in lock step. The rows are then wide and need fewer writes and checksum calls;
- block: the target chunks of the block are assembled in memory. If they do not fit, the block is halved along the
  dimension that repeats the least decoding, until one target chunk is left.

Demands that share a read share its units, and each decoded band goes to all of them. If some are assembled in memory,
raw ones are still written piece by piece. They may want different boxes: if each chunk has many layers of a stacked tensor,
every layer may become a tensor of its own, and each chunk is decoded once for all of them.

Target chunks that span several pieces are assembled from all of them, each read in its turn (``joint``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from reshard.answers.shared import Strategy
from reshard.formats.encoding import CHECKSUM
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.cost import READ_BYTES_PER_SECOND, is_turned
from reshard.planning.frame import COPY_BYTES, Choice, Demand, Frame, best_halving, first_halving
from reshard.planning.piece import Piece, spans_chunks
from reshard.planning.task_memory import (
    BAND_BYTES,
    SMALLEST_BAND_BYTES,
    TASK_BAND_BYTES,
    TURNED_BAND_BYTES,
    Draft,
    Pace,
    Reading,
    chunks_per_unit,
    gains_at_once,
    task_bytes,
)
from reshard.planning.tensor_plan import Side

__all__ = ["COPY_BYTES", "Choice", "Demand", "cheapest", "choices", "seconds", "smallest_memory"]


def cheapest(demands: Sequence[Demand], memory: int, max_open_chunks: int) -> Choice | None:
    """The fills of least processor time that serve all demands from one read, within ``memory`` per task.

    All demands read one tensor, in one view. None if nothing fits.
    """
    fitting = [w for w in choices(demands, memory, max_open_chunks) if w.task_bytes <= memory]
    return min(fitting, key=_processor_seconds, default=None)


def seconds(choice: Choice) -> float:
    """Seconds that a choice takes, reading included; only for comparing."""
    decoded = choice.fills[0].price.decoded_bytes
    return _processor_seconds(choice) + decoded / READ_BYTES_PER_SECOND


def _processor_seconds(choice: Choice) -> float:
    return sum(fill.price.seconds for fill in choice.fills)


def choices(demands: Sequence[Demand], memory: int, max_open_chunks: int) -> Iterator[Choice]:
    """Every choice worth pricing; if none fits into ``memory``, also those that need the least."""
    identical = sum(map(_is_identical, demands))
    if identical == len(demands):
        yield _copy(demands)
    if identical:
        return  # chunks that are copied encoded are never decoded, so there is nothing to share
    if all(map(_is_chunk_by_chunk, demands)):
        yield _whole(demands, memory)  # first: at equal price it has the least overhead
    frame, raw = Frame.of(demands), _raw(demands)
    if raw == len(demands):
        for first_open_dim in _first_open_dims(frame):
            yield from _scatter(frame, memory, first_open_dim, max_open_chunks)
    elif raw:
        yield from _block(frame, _in_pieces_if_raw(demands), memory)
    if not any(map(_shares_chunks, demands)):
        yield from _block(frame, ["block"] * len(demands), memory)


def _raw(demands: Sequence[Demand]) -> int:
    """The number of raw targets."""
    return sum([demand.target.raw for demand in demands])


def _in_pieces_if_raw(demands: Sequence[Demand]) -> list[Strategy]:
    return ["scatter" if demand.target.raw else "block" for demand in demands]


def _first_open_dims(frame: Frame) -> Sequence[int]:
    """The first dimensions along which source chunks may be decoded side by side, the last first.

    Only bands that all targets take whole, and that are boxes of the source, are put side by side. In all other cases the
    dimension is the rank, so that one chunk is open.
    """
    is_plain = frame.is_one and frame.demands[0].piece.source_view is None
    ranks = range(len(frame.box.start), 0, -1)
    return ranks if is_plain else ranks[:1]


def _shares_chunks(demand: Demand) -> bool:
    """True if other pieces fill the rest of a raw target chunk, so that this one cannot assemble it."""
    return spans_chunks(demand.target.spec, [demand.piece])


def _is_identical(demand: Demand) -> bool:
    """True if every target chunk is some source chunk, encoded alike except perhaps for a checksum."""
    source, target = demand.source, demand.target
    alike = target.codec in (source.codec, f"{source.codec}{CHECKSUM}")
    is_padded_alike = source.spec.chunk_shape == target.spec.chunk_shape
    return not source.raw and alike and is_padded_alike and _has_equal_chunks(demand)


def _has_equal_chunks(demand: Demand) -> bool:
    """True if every target chunk has the elements of some source chunk."""
    piece, source, target = demand.piece, demand.source.spec, demand.target.spec
    return (
        not piece.is_computed
        and source.storage == target.storage
        and piece == Piece.whole(source, target, checkpoint=piece.checkpoint)
    )


def _is_chunk_by_chunk(demand: Demand) -> bool:
    """True if chunks differ only in their encoding, are small, and have no padding to clear."""
    return (
        _has_equal_chunks(demand)
        and demand.source.spec.chunk_bytes <= BAND_BYTES
        and not _has_padding(demand.source.spec)
        and not _has_padding(demand.target.spec)
    )


def _has_padding(spec: TensorSpec) -> bool:
    return spec.chunk_shape is not None and not _divides(spec.chunk_shape, spec.shape)


def _divides(chunk: Sequence[int], shape: Sequence[int]) -> bool:
    return all(n % c == 0 for n, c in zip(shape, chunk, strict=True))


def _whole(demands: Sequence[Demand], memory: int) -> Choice:
    units, chunk = demands[0].target.spec.storage, demands[0].source.spec.chunk_bytes
    frame = Frame.of(demands)
    drafts = frame.drafts(["whole"] * len(demands), units)
    return frame.choice(drafts, units, _pace(frame.reading(units), drafts, memory, chunk, chunk))


def _copy(demands: Sequence[Demand]) -> Choice:
    frame, first = Frame.of(demands), demands[0]
    units = first.piece.target_grid(first.target.spec.storage)
    need = max(demand.copy_bytes for demand in demands)
    pace = Pace(SMALLEST_BAND_BYTES, False, need)
    return frame.choice(frame.drafts(["copy"] * len(demands), units), units, pace)


def _scatter(
    frame: Frame, memory: int, first_open_dim: int, max_open_chunks: int
) -> Iterator[Choice]:
    """Choices that decode source chunks side by side from dimension ``first_open_dim`` on: all, half of them, …

    If ``first_open_dim`` equals the rank, one chunk is open, and the choice is a plain scatter.
    """
    source, source_grid = frame.demands[0].source, frame.source
    units: Grid | None = _widest(source_grid, first_open_dim)
    while units is not None:
        open_chunks = chunks_per_unit(units, source_grid)
        if open_chunks == 1 and first_open_dim < len(units.shape):
            return
        strategy: Strategy = "weave" if open_chunks > 1 else "scatter"
        if open_chunks <= max_open_chunks:
            drafts = frame.drafts([strategy] * len(frame.demands), units)
            least = _least_band(source, open_chunks, first_open_dim)
            pace = _pace(frame.reading(units), drafts, memory, least)
            yield frame.choice(drafts, units, pace)
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


def _pace(
    reading: Reading,
    drafts: Sequence[Draft],
    memory: int,
    least: int = SMALLEST_BAND_BYTES,
    most: int = TASK_BAND_BYTES,
) -> Pace:
    """The pace of a task: chunks are decoded at once if that gains and fits; else in streams, in the widest bands that fit,
    or the smallest."""
    if gains_at_once(reading, drafts):
        at_once = _widest_bands(reading, drafts, memory, least, most, at_once=True)
        if at_once.task_bytes <= memory:
            return at_once
    return _widest_bands(reading, drafts, memory, least, most, at_once=False)


def _widest_bands(
    reading: Reading,
    drafts: Sequence[Draft],
    memory: int,
    least: int,
    most: int,
    *,
    at_once: bool,
) -> Pace:
    need = partial(task_bytes, reading, drafts, at_once=at_once)
    if most == TASK_BAND_BYTES and any(is_turned(draft.piece) for draft in drafts):
        most = TURNED_BAND_BYTES
    band = max(most, least)
    while band > least and need(band) > memory:
        band = max(least, band // 2)
    return Pace(band, at_once, need(band))


def _block(frame: Frame, strategies: Sequence[Strategy], memory: int) -> Iterator[Choice]:
    # A chunk is assembled from all of its bytes; pieces may be cut anywhere.
    assembled = frame.assembled(strategies)
    slices = frame.demands[0].target.in_order
    if slices is None:
        units = frame.source.common(assembled)
    else:
        units = _aligned_rows(frame.demands[0], slices, assembled)
    while True:
        drafts = frame.drafts(strategies, units)
        pace = _pace(frame.reading(units), drafts, memory)
        if slices is None:
            halved = best_halving(frame.decoded_bytes, units, assembled)
        else:
            halved = first_halving(units, assembled)
        if halved is None:
            break
        is_small = slices is None or not _is_halved_for_free(frame, units, halved)
        if is_small and pace.task_bytes <= memory:
            break
        units = halved
    yield frame.choice(drafts, units, pace)


def _aligned_rows(demand: Demand, slices: Grid, assembled: Grid) -> Grid:
    """The slices, cut in their first dimension that has several chunks wherever a source chunk ends too."""
    piece = demand.piece
    units = piece.target_grid(slices)
    source = piece.source_grid(demand.source.spec.storage)
    for dim, (cuts, finer) in enumerate(zip(units.cuts, assembled.cuts, strict=True)):
        if finer != cuts:
            common = set(finer) & {*source.cuts[dim], *cuts}
            return Grid(
                units.shape, (*units.cuts[:dim], tuple(sorted(common)), *units.cuts[dim + 1 :])
            )
    return units


def _is_halved_for_free(frame: Frame, units: Grid, halved: Grid) -> bool:
    """True if two halves cost no more reading than the whole. In ordered writing, one half is then sent while the next is read."""
    is_raw = frame.demands[0].source.raw
    return is_raw or frame.decoded_bytes(halved) == frame.decoded_bytes(units)


def smallest_memory(demand: Demand) -> int:
    """The least memory with which ``demand`` can be carried out."""
    return min(choice.task_bytes for choice in choices([demand], 0, max_open_chunks=1))
