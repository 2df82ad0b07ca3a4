"""CRC of a tensor's row-major bytes from pieces that pass in any order.

A piece lies in the tensor as runs of contiguous bytes at regular strides. Adjacent dimensions are
merged until runs are as long as they can be; then the cheapest of four ways is taken:

one     the piece is one run: one call.
wide    runs are copied to their places in a zeroed scratch of SCRATCH_BYTES, whose gaps stay zero
        from one piece to the next, and the scratch is summed in one call; for short gaps.
short   table look-ups in numpy, for runs below 128 bytes.
each    one call a run, and the values folded (see ``crc_linear``).

A piece that is not contiguous in memory where it is in the tensor (a transposed view) goes through
a scratch block by block. Memory: two scratches of SCRATCH_BYTES per thread, and the tables.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from reshard.engine.crc_linear import (
    CRC32C,
    CRC64NVME,
    FEW,
    SHORT_RUN_BYTES,
    Crc,
    finish,
    fold,
    fold_few,
    linear_of_each,
    linear_of_short,
)
from reshard.layout.box import Box

Array = NDArray[Any]
Way = Literal["one", "wide", "short", "each"]

SCRATCH_BYTES = 256 << 10
"""Half of a common second-level cache: summing what was just copied there costs no memory traffic."""

_COPIED_RUN_BYTES = 1536
"""Up to here copying a run into a bytes object is cheaper than making a view of it (measured)."""

_BATCH_BYTES = 128 << 10
"""Copied runs alive at once: they stay in cache."""

_GATHER_BYTES = 16 << 10
"""Bytes looked up at once: their indices and entries, 16 bytes each, stay in cache."""

_VALUES_AT_ONCE = 4096
"""Runs whose values are folded together: enough to hide the cost of a numpy call."""

_SCATTERED_BYTES = 64
"""Pieces whose runs in memory are shorter are copied element by element, not run by run."""

# Nanoseconds on a 2.4 GHz core without AVX-512; only their ratios matter.
_CALL_NS, _BYTE_NS, _COPY_NS, _COPIED_RUN_NS, _GATHER_NS, _ROW_NS = 200.0, 0.08, 0.06, 8.0, 1.6, 15.0


@dataclass(frozen=True, slots=True)
class Runs:
    """How a box lies in its tensor's row-major bytes.

    Attributes:
        run_bytes: length of each contiguous run.
        counts: number of runs along each merged dimension, outermost first; () for one run.
        strides: bytes between runs along each.
        way: how they are summed.
    """

    run_bytes: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    way: Way

    @property
    def total(self) -> int:
        return math.prod(self.counts)

    @property
    def span(self) -> int:
        """Bytes from the first run's start to the last run's end."""
        return _span(self.run_bytes, self.counts, self.strides)


def linear_of_box(crc: Crc, piece: Array, box: Box, shape: tuple[int, ...]) -> int:
    """What ``piece``, lying at ``box`` in a row-major tensor of ``shape``, adds to the tensor's CRC.

    The XOR over disjoint boxes that cover the tensor, given to ``finish`` with the tensor's bytes,
    is the CRC of the whole. ``piece`` has the box's shape and any strides; it is not changed.
    """
    if not piece.size:
        return 0
    runs = runs_of(box.shape, shape, piece.itemsize)
    start = 0
    for offset, size in zip(box.start, shape, strict=True):
        start = start * size + offset
    end = start * piece.itemsize + runs.span
    value = _linear_of_piece(crc, piece, shape, runs)
    return crc.shift(value, math.prod(shape) * piece.itemsize - end)


@dataclass(slots=True)
class BoxDigest:
    """The CRC of one tensor, gathered from its boxes; confined to one thread.

    >>> digest = BoxDigest(CRC64NVME, (4, 4), 2)
    >>> for half in Box((0, 2), (4, 4)), Box((0, 0), (4, 2)):
    ...     digest.add(np.ones(half.shape, np.int16), half)
    >>> digest.value() == CRC64NVME.of(np.ones((4, 4), np.int16))
    True

    Attributes:
        contribution: XOR of what was added; contributions of other threads may be XORed in.
        seen_bytes: how many bytes were added.
    """

    crc: Crc
    shape: tuple[int, ...]
    itemsize: int
    contribution: int = 0
    seen_bytes: int = 0

    def add(self, piece: Array, box: Box) -> None:
        """Add the piece that lies at ``box``; boxes must be disjoint."""
        self.contribution ^= linear_of_box(self.crc, piece, box, self.shape)
        self.seen_bytes += piece.nbytes

    def merge(self, contribution: int, nbytes: int) -> None:
        """Add what was computed elsewhere for ``nbytes`` bytes of this tensor."""
        self.contribution ^= contribution
        self.seen_bytes += nbytes

    def value(self) -> int:
        """The CRC of the whole tensor; ValueError unless every byte was added."""
        nbytes = math.prod(self.shape) * self.itemsize
        if self.seen_bytes != nbytes:
            raise ValueError(
                f"the digest of a tensor of {nbytes} bytes needs all of them, but {self.seen_bytes} were added"
            )
        return finish(self.crc, self.contribution, nbytes)


def cost_per_byte(run_bytes: int) -> float:
    """About how many nanoseconds of one core a byte costs in runs of ``run_bytes``, far apart."""
    if run_bytes < 1:
        return 0.0
    each, short = _each_ns(run_bytes), _short_ns(run_bytes)
    return (min(each, short) if run_bytes <= SHORT_RUN_BYTES else each) / run_bytes


@lru_cache(maxsize=1024)
def runs_of(box_shape: tuple[int, ...], shape: tuple[int, ...], itemsize: int) -> Runs:
    """The runs of a box of ``box_shape`` (not empty) anywhere in a row-major tensor of ``shape``."""
    strides = _row_major(shape, itemsize)
    merged = _merge(box_shape, strides, strides, itemsize)
    return _runs(tuple(n for n, _, _ in merged), tuple(s for _, s, _ in merged))


@lru_cache(maxsize=1024)
def _runs_in_memory(
    box_shape: tuple[int, ...], shape: tuple[int, ...], itemsize: int, memory: tuple[int, ...]
) -> tuple[Runs, tuple[int, ...]]:
    """Runs that are contiguous both in the tensor and in memory, and their strides in memory."""
    merged = _merge(box_shape, _row_major(shape, itemsize), memory, itemsize)
    runs = _runs(tuple(n for n, _, _ in merged), tuple(s for _, s, _ in merged))
    return runs, tuple(m for _, _, m in merged[:-1])


def _runs(counts: tuple[int, ...], strides: tuple[int, ...]) -> Runs:
    run_bytes, counts, strides = counts[-1], counts[:-1], strides[:-1]
    return Runs(run_bytes, counts, strides, _cheapest(run_bytes, counts, strides))


@lru_cache(maxsize=4096)
def _row_major(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return tuple(math.prod(shape[d + 1 :]) * itemsize for d in range(len(shape)))


def _merge(
    counts: tuple[int, ...], strides: tuple[int, ...], memory: tuple[int, ...], itemsize: int
) -> list[tuple[int, int, int]]:
    """Dimensions as (count, stride in the tensor, stride in memory), outermost first.

    Innermost are the bytes of an element; a dimension joins the one within it where both strides
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


def _span(run_bytes: int, counts: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return run_bytes + sum((n - 1) * s for n, s in zip(counts, strides, strict=True))


def _cheapest(run_bytes: int, counts: tuple[int, ...], strides: tuple[int, ...]) -> Way:
    if not counts:
        return "one"
    share = _span(run_bytes, counts, strides) / math.prod(counts)
    prices: dict[Way, float] = {"each": _each_ns(run_bytes)}
    if run_bytes <= SHORT_RUN_BYTES:
        prices["short"] = _short_ns(run_bytes)
    if run_bytes <= SCRATCH_BYTES // 4:
        prices["wide"] = share * _BYTE_NS + run_bytes * _COPY_NS + _COPIED_RUN_NS
    return min(prices, key=prices.__getitem__)


def _each_ns(run_bytes: int) -> float:
    return _CALL_NS + run_bytes * (_BYTE_NS + (_COPY_NS if run_bytes <= _COPIED_RUN_BYTES else 0))


def _short_ns(run_bytes: int) -> float:
    return _ROW_NS + run_bytes * _GATHER_NS


def _linear_of_piece(crc: Crc, piece: Array, shape: tuple[int, ...], runs: Runs) -> int:
    """Linear part of the piece as it lies in the tensor, relative to the end of its last run."""
    if piece.flags.c_contiguous:
        rows = piece.reshape(-1).view(np.uint8).reshape(*runs.counts, runs.run_bytes)
        return _linear(crc, rows, runs.strides, runs.way)
    itemsize = piece.itemsize
    found, steps = _runs_in_memory(piece.shape, shape, itemsize, piece.strides)
    if found.run_bytes < min(runs.run_bytes, _SCATTERED_BYTES):
        return _linear_of_scattered(crc, piece, shape)
    view = as_strided(piece, (*found.counts, found.run_bytes // itemsize), (*steps, itemsize))
    return _linear(crc, view.view(np.uint8), found.strides, found.way)


def _linear_of_scattered(crc: Crc, piece: Array, shape: tuple[int, ...]) -> int:
    """The same for a piece whose neighbours in the tensor are not neighbours in memory."""
    if piece.nbytes <= SCRATCH_BYTES:
        return _linear_of_piece(crc, _scratch.dense(piece), shape, runs_of(piece.shape, shape, piece.itemsize))
    axis = next(d for d, n in enumerate(piece.shape) if n > 1)
    step = max(1, SCRATCH_BYTES * piece.shape[axis] // piece.nbytes)
    parts = (piece[(slice(None),) * axis + (slice(i, i + step),)] for i in range(0, piece.shape[axis], step))
    stride, total = _row_major(shape, piece.itemsize)[axis], 0
    for part in parts:
        total = crc.shift(total, stride * part.shape[axis]) ^ _linear_of_scattered(crc, part, shape)
    return total


def _linear(crc: Crc, rows: NDArray[np.uint8], strides: tuple[int, ...], way: Way) -> int:
    """Linear part of ``(*counts, run_bytes)`` bytes whose runs lie at ``strides``."""
    if way == "one" or not strides:
        return crc.linear(rows)
    at_once = _rows_at_once(rows.shape, strides, way)
    if at_once >= len(rows):
        return _linear_at_once(crc, rows, strides, way)
    total = 0
    for i in range(0, len(rows), at_once):
        part = rows[i : i + at_once]
        value = _linear(crc, part, strides, way) if at_once > 1 else _linear(crc, part[0], strides[1:], way)
        total = crc.shift(total, strides[0] * len(part)) ^ value
    return total


def _rows_at_once(shape: tuple[int, ...], strides: tuple[int, ...], way: Way) -> int:
    """How many entries of the first axis are summed together, at least 1."""
    if way == "wide":
        inner = _span(shape[-1], shape[1:-1], strides[1:])
        return max(1, 1 + (SCRATCH_BYTES - inner) // strides[0])
    return max(1, _VALUES_AT_ONCE // math.prod(shape[1:-1]))


def _linear_at_once(crc: Crc, rows: NDArray[np.uint8], strides: tuple[int, ...], way: Way) -> int:
    if way == "wide":
        return crc.linear(_scratch.spread(rows, strides))
    values = _values(crc, rows, way)
    if len(strides) == 1 and len(values) <= FEW:
        return fold_few(crc, values, strides[0])
    for stride in reversed(strides):
        values = fold(crc, values, stride)
    return int(values)


def _values(crc: Crc, rows: NDArray[np.uint8], way: Way) -> Array:
    """Linear part of every run: an array of shape ``counts``."""
    *counts, run_bytes = rows.shape
    if len(counts) > 1 and rows.nbytes > _BATCH_BYTES:
        return np.stack([_values(crc, part, way) for part in rows])
    flat = rows.reshape(-1, run_bytes)
    batch = max(1, (_GATHER_BYTES if way == "short" else _BATCH_BYTES) // run_bytes)
    parts = [_batch_values(crc, flat[i : i + batch], way) for i in range(0, len(flat), batch)]
    return np.concatenate(parts).reshape(counts)


def _batch_values(crc: Crc, rows: NDArray[np.uint8], way: Way) -> Array:
    if way == "short":
        return linear_of_short(crc, rows)
    if rows.shape[1] <= _COPIED_RUN_BYTES:
        return linear_of_each(crc, rows.view(f"V{rows.shape[1]}")[:, 0].tolist())
    return linear_of_each(crc, rows)


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
        return self._wide[: _span(rows.shape[-1], rows.shape[:-1], strides)]

    def dense(self, piece: Array) -> Array:
        """A contiguous copy; valid until the next call."""
        copy = self._dense[: piece.nbytes].view(piece.dtype).reshape(piece.shape)
        np.copyto(copy, piece)
        return copy


_scratch = _Scratch()
