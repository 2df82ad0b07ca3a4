"""The runs of a box in its tensor's row-major bytes, and the cheapest way to compute their CRC.

A box is runs of contiguous bytes at regular strides. Adjacent dimensions are merged until runs are
as long as they can be::

    shape (4, 3, 8), box 4 x 2 x 8, 2-byte elements      4 runs of 32 bytes, 48 bytes apart
    shape (4, 3, 8), box 2 x 3 x 8                       1 run of 96 bytes
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from reshard.checksums.crc import SHORT_RUN_BYTES

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
        prices["short"] = _short_ns(run_bytes)
    if run_bytes <= SCRATCH_BYTES // 4:
        prices["wide"] = share * _BYTE_NS + run_bytes * _COPY_NS + _SPREAD_NS
    return min(prices, key=prices.__getitem__)


def _each_ns(run_bytes: int) -> float:
    if run_bytes <= COPIED_RUN_BYTES:
        return _CALL_NS + run_bytes * (_BYTE_NS + _COPY_NS)
    return _CALL_NS + _VIEW_NS + run_bytes * _BYTE_NS


def _short_ns(run_bytes: int) -> float:
    return _LOOKUP_RUN_NS + run_bytes * _LOOKUP_NS
