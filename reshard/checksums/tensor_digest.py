"""CRC of a tensor's row-major bytes, from pieces in any order.

A piece is runs of contiguous bytes at regular strides in the tensor. Adjacent dimensions are merged until runs are as long as
they can be::

    shape (4, 3, 8), box 4 x 2 x 8, 2-byte elements      4 runs of 32 bytes, 48 bytes apart
    shape (4, 3, 8), box 2 x 3 x 8                       1 run of 96 bytes

Then the cheapest of four methods is used:

one     the piece is one run: one call.
wide    runs are copied to their places in a zeroed scratch of SCRATCH_BYTES, whose gaps stay zero from one piece to the
        next; one call sums the scratch; for short gaps.
short   table look-ups in numpy, for runs up to 64 bytes.
each    one call a run, and the values folded (see ``crc_linear``).

If runs of the tensor are not contiguous in memory (a transposed view), the piece is copied to a scratch, block by
block. Memory: two scratches of SCRATCH_BYTES per thread, and the tables. Calls on more than 5 KiB, copies and look-ups
release the GIL; ``each`` with shorter runs holds it.

``PieceCrcs`` is the CRC of pieces that the format recorded: TensorFlow records the CRC32C of each slice, and the archives of torch the
CRC-32 of each piece. Pieces may be any boxes, and tasks read any others. The linear part of a CRC adds up: the contributions of boxes
that tile the tensor, to the pieces that each meets, add up to the XOR of the linear parts of all pieces.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from msgspec import Struct
from numpy.lib.stride_tricks import as_strided

from reshard.checksums.crc import (
    CRC32C,
    CRC64NVME,
    SHORT_RUN_BYTES,
    Crc,
    finish,
    fold,
    fold_last,
    linear_of_each,
    linear_of_short,
    linear_part,
)
from reshard.geometry.grid import Box

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


SummingWay = Literal["one", "wide", "short", "each"]
"""The ways to sum runs; ``reshard.checksums.tensor_digest`` describes each."""

SCRATCH_BYTES = 256 << 10
"""Half of a common second-level cache: bytes that were just copied are still in the cache when their CRC is taken."""

COPIED_RUN_BYTES = 1536
"""Up to this size copying a run into a bytes object is cheaper than making a view (measured)."""

# Nanoseconds on a 2.4 GHz core without AVX-512; only their ratios matter.
_CALL_NS = 215.0
_VIEW_NS = 80.0
_BYTE_NS = 0.08
_COPY_NS = 0.06
_SPREAD_NS = 8.0
_LOOKUP_NS = 2.5
_LOOKUP_RUN_NS = 25.0


class Runs(Struct, frozen=True):
    """The runs of a box in its tensor's row-major bytes.

    Attributes:
        run_bytes: length of each contiguous run.
        counts: number of runs along each merged dimension, outermost first; () for one run.
        strides: bytes between runs along each.
        way: the way to compute their CRC.
    """

    run_bytes: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    way: SummingWay

    @property
    def total(self) -> int:
        return math.prod(self.counts)

    @property
    def span(self) -> int:
        """Bytes from the first run's start to the last run's end."""
        return span_of(self.run_bytes, self.counts, self.strides)


@lru_cache(maxsize=1024)
def runs_of(box_shape: tuple[int, ...], shape: tuple[int, ...], itemsize: int) -> Runs:
    """The runs of a box of ``box_shape`` (not empty) anywhere in a row-major tensor of ``shape``."""
    strides = row_major(shape, itemsize)
    merged = _merge(box_shape, strides, strides, itemsize)
    return _runs(tuple(n for n, _, _ in merged), tuple(s for _, s, _ in merged))


@lru_cache(maxsize=1024)
def runs_in_memory(
    box_shape: tuple[int, ...], shape: tuple[int, ...], itemsize: int, memory: tuple[int, ...]
) -> tuple[Runs, tuple[int, ...]]:
    """Runs that are contiguous both in the tensor and in memory, and their strides in memory."""
    merged = _merge(box_shape, row_major(shape, itemsize), memory, itemsize)
    runs = _runs(tuple(n for n, _, _ in merged), tuple(s for _, s, _ in merged))
    return runs, tuple(m for _, _, m in merged[:-1])


def _runs(counts: tuple[int, ...], strides: tuple[int, ...]) -> Runs:
    run_bytes, counts, strides = counts[-1], counts[:-1], strides[:-1]
    return Runs(run_bytes, counts, strides, _cheapest(run_bytes, counts, strides))


@lru_cache(maxsize=4096)
def row_major(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of a row-major tensor."""
    return tuple(math.prod(shape[d + 1 :]) * itemsize for d in range(len(shape)))


def _merge(
    counts: tuple[int, ...], strides: tuple[int, ...], memory: tuple[int, ...], itemsize: int
) -> list[tuple[int, int, int]]:
    """Dimensions as (count, stride in the tensor, stride in memory), outermost first.

    Innermost are the bytes of an element; a dimension joins the one within it if both strides
    continue it.
    """
    merged = [(itemsize, 1, 1)]
    for count, stride, step in zip(counts[::-1], strides[::-1], memory[::-1], strict=True):
        inner, inner_stride, inner_step = merged[0]
        if count == 1:
            continue
        if stride == inner * inner_stride and step == inner * inner_step:
            merged[0] = (count * inner, inner_stride, inner_step)
        else:
            merged.insert(0, (count, stride, step))
    return merged


def span_of(run_bytes: int, counts: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Bytes from the start of the first run to the end of the last."""
    return run_bytes + sum((n - 1) * s for n, s in zip(counts, strides, strict=True))


def _cheapest(run_bytes: int, counts: tuple[int, ...], strides: tuple[int, ...]) -> SummingWay:
    if not counts:
        return "one"
    share = span_of(run_bytes, counts, strides) / math.prod(counts)
    prices: dict[SummingWay, float] = {"each": _each_ns(run_bytes)}
    if run_bytes <= SHORT_RUN_BYTES:
        prices["short"] = _LOOKUP_RUN_NS + run_bytes * _LOOKUP_NS
    if run_bytes <= SCRATCH_BYTES // 4:
        prices["wide"] = share * _BYTE_NS + run_bytes * _COPY_NS + _SPREAD_NS
    return min(prices, key=prices.__getitem__)


def _each_ns(run_bytes: int) -> float:
    if run_bytes <= COPIED_RUN_BYTES:
        return _CALL_NS + run_bytes * (_BYTE_NS + _COPY_NS)
    return _CALL_NS + _VIEW_NS + run_bytes * _BYTE_NS


__all__ = ["CRC32C", "CRC64NVME", "Crc", "finish", "linear_of_box"]


_BATCH_BYTES = 128 << 10
"""Bytes of runs that are copied at once: they stay in cache."""

_GATHER_BYTES = 16 << 10
"""Bytes that are looked up at once: their indices and entries, 16 bytes each, stay in cache."""

_VALUES_AT_ONCE = 4096
"""Runs that are folded together: enough to hide the cost of a numpy call."""

_SCATTERED_BYTES = 64
"""Pieces whose runs in memory are shorter are copied element by element, not run by run."""


def linear_of_box(crc: Crc, piece: Array, box: Box, shape: tuple[int, ...]) -> int:
    """The contribution of ``piece``, at ``box`` of a row-major tensor of ``shape``, to the tensor's CRC.

    The XOR over disjoint boxes that cover the tensor, given to ``finish`` with the tensor's bytes,
    is the CRC of the whole. ``piece`` has the box's shape and any strides; it is not changed.
    ValueError if it has another shape.
    """
    if piece.shape != box.shape:
        raise ValueError(f"a piece of shape {piece.shape} cannot be at {box}")
    if not piece.size:
        return 0
    if piece.shape == shape and piece.flags.c_contiguous:
        return crc.linear(piece.reshape(-1).view(np.uint8))
    runs = runs_of(piece.shape, shape, piece.itemsize)
    start = 0
    for offset, size in zip(box.start, shape, strict=True):
        start = start * size + offset
    end = start * piece.itemsize + runs.span
    value = _linear_of_piece(crc, piece, shape, runs)
    return crc.shift(value, math.prod(shape) * piece.itemsize - end)


def _linear_of_piece(crc: Crc, piece: Array, shape: tuple[int, ...], runs: Runs) -> int:
    """Linear part of the piece at its place in the tensor, relative to the end of its last run."""
    if piece.flags.c_contiguous:
        rows = piece.reshape(-1).view(np.uint8).reshape(*runs.counts, runs.run_bytes)
        return _linear(crc, rows, runs.strides, runs.way)
    itemsize = piece.itemsize
    found, steps = runs_in_memory(piece.shape, shape, itemsize, piece.strides)
    if found.run_bytes < min(runs.run_bytes, _SCATTERED_BYTES):
        return _linear_of_scattered(crc, piece, shape)
    # numpy makes strided views of its own element types only.
    opaque = piece.view(f"V{itemsize}")
    view = as_strided(opaque, (*found.counts, found.run_bytes // itemsize), (*steps, itemsize))
    return _linear(crc, view.view(np.uint8), found.strides, found.way)


def _linear_of_scattered(crc: Crc, piece: Array, shape: tuple[int, ...]) -> int:
    """The same for a piece whose runs in the tensor are not contiguous in memory."""
    if piece.nbytes <= SCRATCH_BYTES:
        return _linear_of_piece(
            crc, _scratch.dense(piece), shape, runs_of(piece.shape, shape, piece.itemsize)
        )
    axis = next(d for d, n in enumerate(piece.shape) if n > 1)
    step = max(1, SCRATCH_BYTES * piece.shape[axis] // piece.nbytes)
    parts = (
        piece[(slice(None),) * axis + (slice(i, i + step),)]
        for i in range(0, piece.shape[axis], step)
    )
    stride, total = row_major(shape, piece.itemsize)[axis], 0
    for part in parts:
        total = crc.shift(total, stride * part.shape[axis]) ^ _linear_of_scattered(crc, part, shape)
    return total


def _linear(crc: Crc, rows: NDArray[np.uint8], strides: tuple[int, ...], way: SummingWay) -> int:
    """Linear part of ``(*counts, run_bytes)`` bytes whose runs are at ``strides``."""
    if way == "one" or not strides:
        return crc.linear(rows)
    at_once = _rows_at_once(rows.shape, strides, way)
    if at_once >= len(rows):
        return _linear_at_once(crc, rows, strides, way)
    total = 0
    for i in range(0, len(rows), at_once):
        part = rows[i : i + at_once]
        value = (
            _linear(crc, part, strides, way)
            if at_once > 1
            else _linear(crc, part[0], strides[1:], way)
        )
        total = crc.shift(total, strides[0] * len(part)) ^ value
    return total


def _rows_at_once(shape: tuple[int, ...], strides: tuple[int, ...], way: SummingWay) -> int:
    """The number of entries of the first axis that are summed together, at least 1."""
    if way == "wide":
        inner = span_of(shape[-1], shape[1:-1], strides[1:])
        return max(1, 1 + (SCRATCH_BYTES - inner) // strides[0])
    return max(1, _VALUES_AT_ONCE // math.prod(shape[1:-1]))


def _linear_at_once(
    crc: Crc, rows: NDArray[np.uint8], strides: tuple[int, ...], way: SummingWay
) -> int:
    if way == "wide":
        return crc.linear(_scratch.spread(rows, strides))
    values = _values(crc, rows, way)
    for stride in strides[:0:-1]:
        values = fold_last(crc, values, stride)
    return fold(crc, values, strides[0])


def _values(crc: Crc, rows: NDArray[np.uint8], way: SummingWay) -> Array:
    """Linear part of every run: an array of shape ``counts``."""
    *counts, run_bytes = rows.shape
    if len(counts) > 1 and rows.nbytes > _BATCH_BYTES and not rows.flags.c_contiguous:
        return np.stack([_values(crc, part, way) for part in rows])
    flat = rows.reshape(-1, run_bytes) if len(counts) > 1 else rows
    if way == "short":
        parts = [linear_of_short(crc, part) for part in _batches(flat, _GATHER_BYTES)]
        values = np.concatenate(parts)
    elif run_bytes > COPIED_RUN_BYTES:
        values = linear_of_each(crc, (flat,))
    else:
        copied = flat.view(f"V{run_bytes}")[:, 0]
        values = linear_of_each(crc, (part.tolist() for part in _batches(copied, _BATCH_BYTES)))
    return values.reshape(counts) if len(counts) > 1 else values


def _batches(rows: Array, nbytes: int) -> Iterator[Array]:
    count = max(1, nbytes * len(rows) // rows.nbytes)
    return (rows[i : i + count] for i in range(0, len(rows), count))


class _Scratch(threading.local):
    """A thread's two reused buffers: one for runs spread with gaps, one for dense copies."""

    def __init__(self) -> None:
        self._wide = np.zeros(SCRATCH_BYTES, np.uint8)
        self._dense = np.empty(SCRATCH_BYTES, np.uint8)
        self._geometry: tuple[int, ...] = ()

    def spread(self, rows: NDArray[np.uint8], strides: tuple[int, ...]) -> NDArray[np.uint8]:
        """Rows at their strides with zeros between; valid until the next call."""
        geometry = (*rows.shape[1:], *strides)
        if geometry != self._geometry:  # the same geometry fills the same places
            self._wide[:] = 0
            self._geometry = geometry
        np.copyto(as_strided(self._wide, rows.shape, (*strides, 1)), rows)
        return self._wide[: span_of(rows.shape[-1], rows.shape[:-1], strides)]

    def dense(self, piece: Array) -> Array:
        """A contiguous copy; valid until the next call."""
        copy = self._dense[: piece.nbytes].view(piece.dtype).reshape(piece.shape)
        np.copyto(copy, piece)
        return copy


_scratch = _Scratch()


class PieceCrcs(Struct, frozen=True, gc=False):
    """The CRCs that the format recorded for a tensor's pieces.

    Attributes:
        boxes: the pieces that tile the tensor, row-major each; none for a tensor that is stored whole.
        total: the XOR of the linear parts of their CRCs.
    """

    boxes: tuple[Box, ...]
    total: int
    crc: Crc = CRC32C

    @classmethod
    def of(
        cls, boxes: Sequence[Box], values: Sequence[int], itemsize: int, crc: Crc = CRC32C
    ) -> PieceCrcs:
        """The record of row-major pieces with these CRCs; the box of a single piece, the whole tensor, is not kept."""
        total = 0
        for box, value in zip(boxes, values, strict=True):
            total ^= linear_part(crc, value, box.size * itemsize)
        return cls(tuple(boxes) if len(boxes) > 1 else (), total, crc)

    def near(self, around: Box) -> PieceCrcs:
        """The same with only the pieces that meet a box, for a caller that reads nothing else."""
        if not self.boxes:
            return self
        # One stays: no boxes would mean that the tensor is stored whole.
        met = tuple(box for box in self.boxes if box.intersect(around)) or self.boxes[:1]
        return PieceCrcs(met, self.total, self.crc)

    def sum_of_box(self, elements: NDArray[Any], box: Box, shape: tuple[int, ...]) -> int:
        """The contribution to ``total`` of ``elements`` at ``box`` of the tensor of ``shape``, or of a view of a whole tensor."""
        if not self.boxes:
            return linear_of_box(self.crc, elements, box, shape)
        total = 0
        for piece in self.boxes:
            met = piece.intersect(box)
            if met is not None:
                own = elements[met.relative_to(box.start).slices]
                total ^= linear_of_box(self.crc, own, met.relative_to(piece.start), piece.shape)
        return total
