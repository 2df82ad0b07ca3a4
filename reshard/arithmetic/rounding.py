"""Rounds float64 values to a narrower dtype once, to nearest even."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Floats = npt.NDArray[np.float64]

_OF_NUMPY = (np.float16, np.float32, np.float64)
"""The dtypes to which numpy rounds float64 itself; ml_dtypes rounds to float32 on the way."""

_TAIL = np.uint32((1 << 15) - 1)
"""The bits of a float32 that are 0 in each number half way between two of bfloat16, and of narrower types."""

SLAB_ELEMENTS = 12 << 10
"""Temporaries of a slab stay below the 128 KiB from which malloc gives memory back to the system."""


def round_into(out: Array, values: Floats) -> None:
    """``out[...] = values``, rounded once to nearest even; ``out`` has any floating dtype, both are contiguous and of one shape.

    A value that does not fit becomes infinite, or NaN where the dtype has no infinity.

    Rounding to float32 first may end half way between two numbers of a narrower dtype, from where a second rounding may go the wrong way. There
    the float32 beside it is taken, on the side of the exact value.
    """
    to, exact = out.reshape(-1), values.reshape(-1)
    with np.errstate(all="ignore"):
        if out.dtype in _OF_NUMPY:
            to[...] = exact
            return
        for start in range(0, exact.size, SLAB_ELEMENTS):
            slab = slice(start, start + SLAB_ELEMENTS)
            to[slab] = _to_one_side(exact[slab])


def _to_one_side(exact: Floats) -> Array:
    """Values as float32 from which a second rounding gives the same as one."""
    single = exact.astype(np.float32)
    bits = single.view(np.uint32)
    found = np.flatnonzero(((bits & _TAIL) == 0) & (single != exact))
    if found.size:
        size, rounded = np.abs(exact[found]), np.abs(single[found]).astype(np.float64)
        # Sign and magnitude: the next bits are those of the next magnitude. A NaN is on no side.
        bits[found] += (rounded < size).astype(np.uint32)
        bits[found] -= (rounded > size).astype(np.uint32)
    return single
