"""Casts elements, after arithmetic if there is any, and counts the loss: rounding, overflow, saturation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reshard.engine.task import CastStats
from reshard.geometry.turned_copy import turned_copy
from reshard.layout.changes import kind_of
from reshard.planning.piece import Arithmetic

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[Any]

SLAB_ELEMENTS = 12 << 10
"""Statistics need temporaries of the slab's size. Those of 8 bytes an element stay below the 128 KiB from which malloc gives memory
back to the system: to fill its pages anew for each slab took three times as long as the cast itself (measured)."""


def cast_into(
    out: Array,
    elements: Array,
    *,
    saturate: bool = False,
    arithmetic: Arithmetic | None = None,
) -> CastStats:
    """``out[...] = elements`` in ``out``'s dtype, rounding to nearest even, slab by slab; after arithmetic if there is any.

    Floats that do not fit become infinite (NaN where the type has no infinity) and are counted;
    integers that do not fit wrap or are unspecified, as numpy leaves them, and are counted. With
    ``saturate`` all values beyond the largest finite one, infinite ones too, become that one, and
    are counted apart; NaN becomes the same as without it.
    """
    stats = CastStats()
    for to, slab in _slabs(out, elements):
        stats = stats + _cast_slab(to, slab, saturate, arithmetic)
    return stats


def _slabs(out: Array, elements: Array) -> list[tuple[Array, Array]]:
    if elements.size <= SLAB_ELEMENTS or elements.ndim == 0:
        return [(out, elements)] if elements.size else []
    rows = max(1, SLAB_ELEMENTS * elements.shape[0] // elements.size)
    slabs: list[tuple[Array, Array]] = []
    for start in range(0, elements.shape[0], rows):
        to, slab = out[start : start + rows], elements[start : start + rows]
        slabs += _slabs(to[0], slab[0]) if slab.size > 2 * SLAB_ELEMENTS else [(to, slab)]
    return slabs


def _cast_slab(out: Array, slab: Array, saturate: bool, arithmetic: Arithmetic | None) -> CastStats:
    import numpy as np

    with np.errstate(all="ignore"):
        cast = converted(slab, out.dtype, saturate=saturate, arithmetic=arithmetic)
        turned_copy(out, cast)
        source, result = _comparable(slab), _comparable(cast)
        if arithmetic is not None:  # the error is measured against the exact result
            source = _after(source, arithmetic)
        nans = int(np.count_nonzero(np.isnan(source)))
        overflow = _overflows(cast, source, result)
        beyond = _beyond(source, out.dtype) if saturate else (np.zeros_like(overflow),)
        kept = np.isfinite(source) & ~overflow & (source != 0)
        for part in beyond:
            kept &= ~part
        lost = result - source
        if not kept.all():
            lost, source = lost[kept], source[kept]
        lost /= source
        error = np.abs(lost)
    return CastStats(
        int(np.count_nonzero(overflow)),
        nans,
        float(error.max()) if error.size else 0.0,
        sum(int(np.count_nonzero(part)) for part in beyond),
    )


def converted(
    slab: Array,
    dtype: np.dtype[Any],
    *,
    saturate: bool = False,
    arithmetic: Arithmetic | None = None,
) -> Array:
    """A copy in ``dtype``. Each value depends on its element alone, not on the element's place in memory.

    Between two narrow types it goes through float32, which represents both exactly, and from floats to uint32 through int64:
    for floats that do not fit, numpy's vector instructions give other values than its plain loop.
    """
    import numpy as np

    with np.errstate(all="ignore"):
        source = slab = slab if arithmetic is None else _computed(slab, arithmetic)
        if not np.can_cast(slab.dtype, dtype, "unsafe"):
            slab = slab.astype(np.float32)
        if dtype == np.uint32 and not _is_integer(slab.dtype):
            slab = slab.astype(np.int64)
        cast = slab.astype(dtype)
        if saturate:
            above, below = _beyond(_comparable(source), dtype)
            cast[above], cast[below] = _limits(dtype)
        return cast


def _computed(slab: Array, arithmetic: Arithmetic) -> Array:
    """The elements after arithmetic in float32, which holds every narrower float exactly; in their own type if that is wider."""
    import numpy as np

    return _after(slab.astype(np.float64 if slab.dtype == np.float64 else np.float32), arithmetic)


def _after(found: Array, arithmetic: Arithmetic) -> Array:
    """The elements after arithmetic, each step rounded to their own type; changes them in place."""
    wide = found.dtype.type
    if arithmetic.multiply != 1:
        found *= wide(arithmetic.multiply)
    if arithmetic.divide != 1:
        found /= wide(arithmetic.divide)
    if arithmetic.add:
        found += wide(arithmetic.add)
    return found


def _beyond(source: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Masks of the elements above the largest finite value of ``dtype``, and of those below the least.

    All others round to a finite value. A type without negative values has no least one.
    """
    import numpy as np

    largest, least = (float(limit) for limit in _limits(dtype))
    above: Array = source > largest
    return above, source < least if least < 0 else np.zeros_like(above)


def _limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The largest and the least finite value of a floating type."""
    import ml_dtypes

    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call] # ml_dtypes has no types for it
    return info.max, info.min


def _overflows(cast: Array, source: Array, result: Array) -> Array:
    """A mask of the finite elements that did not fit."""
    import numpy as np

    if _is_integer(cast.dtype):
        least, most = _integer_limits(cast.dtype)
        whole = np.trunc(source)
        # A float holds the power of two above the largest integer, but not always that integer.
        outside: Array = (whole < least) | (whole >= most + 1) | ~np.isfinite(source)
        return outside
    lost: Array = np.isfinite(source) & ~np.isfinite(result)
    return lost


def _comparable(elements: Array) -> Array:
    """The elements in a type wide enough to compare source and result in."""
    import numpy as np

    if elements.dtype.kind == "c":
        return elements.astype(np.complex128)
    return elements.astype(np.longdouble if elements.dtype.itemsize == 8 else np.float64)


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return kind_of(dtype.name) in ("bool", "int")


def _integer_limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    import ml_dtypes

    if dtype.kind == "b":
        return 0, 1
    info = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call] # ml_dtypes has no types for it
    return int(info.min), int(info.max)
