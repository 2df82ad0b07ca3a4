"""Interleaved: cuts the bands of chunks that lie side by side into pieces, without joining them first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from reshard.geometry.grid import Box

if TYPE_CHECKING:
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]


class Interleaved:
    """Bands of one shape, one of each chunk, that together form one band as wide as all of them."""

    def __init__(self, bands: Array, dim: int) -> None:
        """``bands`` has the shape (number of bands, ...); they are side by side along ``dim`` of a band, in order."""
        self._bands = bands
        self._dim = dim
        self._width: int = bands.shape[1 + dim]

    @property
    def nbytes(self) -> int:
        return self._bands.nbytes

    def view(self, where: tuple[slice, ...]) -> Array | None:
        """The elements at ``where`` of the combined band (no dimension is empty); None unless a single band has them all."""
        first, last = self._ends(where)
        return self._part(first, where) if first == last else None

    def copy(self, where: tuple[slice, ...], out: Array) -> None:
        """Fills ``out`` with the elements at ``where`` of the combined band (no dimension is empty)."""
        dim, width, along = self._dim, self._width, where[self._dim]
        first, last = self._ends(where)
        if along.start % width == 0 and along.stop % width == 0:
            # One copy, since the interpreter's lock is taken again after each.
            bands = self._bands[(slice(first, last + 1), *_along(where, dim, slice(None)))]
            shape = (*out.shape[:dim], len(bands), width, *out.shape[dim + 1 :])
            out.reshape(shape)[...] = np.moveaxis(bands, 0, dim)
            return
        for band in range(first, last + 1):
            start, stop = max(along.start, band * width), min(along.stop, (band + 1) * width)
            there = (slice(None),) * dim + (slice(start - along.start, stop - along.start),)
            out[there] = self._part(band, _along(where, dim, slice(start, stop)))

    def _ends(self, where: tuple[slice, ...]) -> tuple[int, int]:
        """The first band and the last."""
        along = where[self._dim]
        return along.start // self._width, (along.stop - 1) // self._width

    def _part(self, band: int, where: tuple[slice, ...]) -> Array:
        along, before = where[self._dim], band * self._width
        part: Array = self._bands[band][
            _along(where, self._dim, slice(along.start - before, along.stop - before))
        ]
        return part


def _along(where: tuple[slice, ...], dim: int, along: slice) -> tuple[slice, ...]:
    return (*where[:dim], along, *where[dim + 1 :])


def interleaved_of(
    parts: Sequence[tuple[Array, Box]], memory: Bytes, combined: Box
) -> Interleaved | None:
    """Parts of ``combined``, views of ``memory``, as one Interleaved.

    None if they do not follow one another along one dimension in one shape, or are unevenly spaced.
    """
    first, shape = parts[0][1], parts[0][0].shape
    across = [
        d
        for d, (one, all_of_them) in enumerate(zip(shape, combined.shape, strict=True))
        if one != all_of_them
    ]
    if len(across) != 1:
        return None
    dim = across[0]
    start, width = first.start[dim], shape[dim]
    is_even = all(
        other.shape == shape and box.start[dim] == start + number * width
        for number, (other, box) in enumerate(parts)
    )
    bands = _evenly_spaced([elements for elements, _ in parts], memory) if is_even else None
    return None if bands is None else Interleaved(bands, dim)


def _evenly_spaced(arrays: Sequence[Array], memory: Bytes) -> Array | None:
    """Views of ``memory`` of one shape as one array; None if they lie at uneven distances."""
    first = arrays[0]
    places = [_address(array) for array in arrays]
    step = places[1] - places[0]
    if any(b - a != step for a, b in pairwise(places)) or step <= 0:
        return None
    return np.ndarray(
        (len(arrays), *first.shape),
        first.dtype,
        memory.data,
        places[0] - _address(memory),
        (step, *first.strides),
    )


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
