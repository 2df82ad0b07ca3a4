"""Compares the elements of two tensors: the number that differ, the largest difference, the sums for the norm.

Two tensors of the same dtype are compared bit by bit. If dtypes differ, values are compared in a type that represents
both exactly. Integers and bools are compared as integers of any size. Integers and floating point are compared as
float64; the part of a 64-bit integer that float64 cannot represent is kept beside it. Complex numbers are compared as
complex128. PRNG keys and packed elements are compared only as bits.

The size of a difference is computed in the same type. NaN and infinite elements have no size: they are
counted, and left out of the largest difference and of both sums.

Sums of squares are computed slab by slab in float64 and added up as whole numbers, without rounding, so
that the order of the slabs does not matter.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from reshard.engine.cast import converted
from reshard.geometry.dtypes import PACKED, numpy_dtype, opaque_dtype, storage_bytes
from reshard.layout.changes import kind_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]


ComparedAs = Literal["bits", "integers", "float64", "complex128"]

SLAB_ELEMENTS = 16 << 10
"""Elements of a slab: few enough that its temporaries stay in cache."""

COMPARE_BYTES = 4 << 20
"""Temporaries of one slab, for any dtypes (measured)."""

_UNIT = 2400
"""Sums are in units of 2 ** -_UNIT, which is less than the square of the smallest float64."""


class Comparing(Struct, frozen=True):
    """The comparison of elements of two dtypes.

    Attributes:
        a, b: names of the dtypes.
        compared_as: the type that represents the values of both exactly.
    """

    a: str
    b: str
    compared_as: ComparedAs

    @classmethod
    def of(cls, a: str, b: str, *, is_key: bool = False) -> Comparing:
        """The comparison of two dtypes; all keys are compared alike."""
        kinds = {kind_of(a), kind_of(b)}
        if is_key or a in PACKED:
            return cls(a, b, "bits")
        if "complex" in kinds:
            return cls(a, b, "complex128")
        return cls(a, b, "float64" if "float" in kinds else "integers")

    def elements(self, a: Bytes, b: Bytes) -> Differences:
        """The differences of two runs of stored elements; ``at`` counts from their start."""
        found = Differences()
        for start in range(0, len(a) // storage_bytes(self.a), SLAB_ELEMENTS):
            one, other = _slab(a, self.a, start), _slab(b, self.b, start)
            differences = self._slab(one, other)
            at = differences.at
            found = found + (differences if at is None else replace(differences, at=at + start))
        return found

    def _slab(self, a: Array, b: Array) -> Differences:
        differ = _unlike_bits(a, b) if self.a == self.b else None
        is_equal = differ is not None and not differ.any()
        if self.compared_as == "bits":
            return Differences() if is_equal or differ is None else _bits(differ)
        if self.compared_as == "integers":
            return _integers(a, b, differ, is_equal)
        return _floats(a, b, differ, is_equal, self.compared_as)


def _slab(memory: Bytes, dtype: str, start: int) -> Array:
    itemsize = storage_bytes(dtype)
    stop = start + SLAB_ELEMENTS
    kind = opaque_dtype(itemsize) if dtype in PACKED else numpy_dtype(dtype)
    slab: Array = memory[start * itemsize : stop * itemsize].view(kind)
    return slab


def _unlike_bits(a: Array, b: Array) -> Array:
    """A mask of the elements whose bits differ."""
    if a.itemsize == 16:
        halves: Array = a.view("u8") != b.view("u8")
        either: Array = halves[::2] | halves[1::2]
        return either
    kind = opaque_dtype(a.itemsize)
    unlike: Array = a.view(kind) != b.view(kind)
    return unlike


def _bits(differ: Array) -> Differences:
    return Differences(_count(differ), at=int(differ.argmax()))


def _count(mask: Array) -> int:
    import numpy as np

    return int(np.count_nonzero(mask))


def _integers(a: Array, b: Array, differ: Array | None, is_equal: bool) -> Differences:
    import numpy as np

    x = _as_integers(a)
    squares_a = _squares(x.astype(np.float64))
    if is_equal:
        return Differences(squares_a=squares_a)
    sizes = _distances(x, _as_integers(b))
    differ = sizes != 0 if differ is None else differ
    if not differ.any():
        return Differences(squares_a=squares_a)
    at = int(np.where(differ, sizes, 0).argmax())
    at = at if differ[at] else int(differ.argmax())
    return Differences(
        _count(differ),
        largest=int(sizes[at]),
        at=at,
        squares=_squares(sizes.astype(np.float64)),
        squares_a=squares_a,
    )


def _as_integers(elements: Array) -> Array:
    import numpy as np

    return elements.astype(np.uint64 if elements.dtype == np.uint64 else np.int64)


def _distances(x: Array, y: Array) -> Array:
    """The exact ``|x - y|``: uint64, or Python integers where uint64 is too small."""
    import numpy as np

    if x.dtype != y.dtype:
        signed = x if x.dtype == np.int64 else y
        if (signed < 0).any():
            large: Array = np.abs(x.astype(object) - y.astype(object))
            return large
        x, y = x.astype(np.uint64), y.astype(np.uint64)
    one, other = x.view(np.uint64), y.view(np.uint64)
    distances: Array = np.where(x > y, one - other, other - one)
    return distances


def _floats(
    a: Array, b: Array, differ: Array | None, is_equal: bool, compared_as: ComparedAs
) -> Differences:
    import numpy as np

    with np.errstate(all="ignore"):
        kind = np.dtype(compared_as)
        x = converted(a, kind)
        if is_equal:
            return _alike(x)
        y = converted(b, kind)
        difference = x - y
        if differ is None:
            difference += _rest(a) - _rest(b)
            differ = ~((difference == 0) | ((x == y) & np.isinf(x)) | (np.isnan(x) & np.isnan(y)))
        return _unlike(x, y, difference, differ)


def _rest(elements: Array) -> Array | float:
    """The exact difference between 64-bit integers and their float64 values."""
    import numpy as np

    if elements.dtype not in (np.int64, np.uint64):
        return 0.0
    low = elements & elements.dtype.type(0xFFFFFFFF)
    high = (elements - low).astype(np.float64)
    rest: Array = (high - elements.astype(np.float64)) + low.astype(np.float64)
    return rest


def _alike(x: Array) -> Differences:
    """The counts and the sum of squares of elements that are equal."""
    import numpy as np

    squares = _plain_squares(x)
    if squares is not None:
        return Differences(squares_a=_units(squares, 0))
    finite, nan = np.isfinite(x), np.isnan(x)
    nans, infinities = _count(nan), x.size - _count(finite) - _count(nan)
    return Differences(
        nans=(nans, nans),
        infinities=(infinities, infinities),
        squares_a=_squares(x[finite]),
    )


def _unlike(x: Array, y: Array, difference: Array, differ: Array) -> Differences:
    import numpy as np

    finite_x, finite_y = np.isfinite(x), np.isfinite(y)
    finite = finite_x & finite_y
    nans = _count(np.isnan(x)), _count(np.isnan(y))
    counted = Differences(
        nans=nans,
        infinities=(x.size - _count(finite_x) - nans[0], x.size - _count(finite_y) - nans[1]),
        squares_a=_squares(x if finite.all() else x[finite]),
    )
    if not differ.any():
        return counted
    sizes = np.where(differ & finite, np.abs(difference), -1.0)
    at = int(sizes.argmax())
    is_finite = bool(sizes[at] >= 0)
    return replace(
        counted,
        elements=_count(differ),
        nonfinite=_count(differ & ~finite),
        largest=float(sizes[at]) if is_finite else None,
        at=at if is_finite else int(differ.argmax()),
        squares=_squared_differences(x, y, difference, differ & finite),
    )


def _squared_differences(x: Array, y: Array, difference: Array, where: Array) -> int:
    """The sum, without overflow if two large numbers have different signs."""
    import numpy as np

    found = difference[where]
    if np.isfinite(found).all():
        return _squares(found)
    return _squares(x[where] / 4 - y[where] / 4) << 4


def _squares(values: Array) -> int:
    """The sum of the squares of finite values, in units of 2 ** -_UNIT."""
    import numpy as np

    plain = _plain_squares(values)
    if plain is not None:
        return _units(plain, 0)
    parts = values.view(np.float64)
    _, scale = math.frexp(float(np.abs(parts).max()))
    scaled = np.ldexp(parts, -scale)
    return _units(float(np.add.reduce(scaled * scaled)), scale)


def _plain_squares(values: Array) -> float | None:
    """The sum in float64; None if squares overflow or underflow, or a value is not finite."""
    import numpy as np

    parts = values.view(np.float64)
    total = float(np.add.reduce(parts * parts))
    if 1e-200 < total < math.inf or (total == 0 and not parts.any()):
        return total
    return None


def _units(total: float, scale: int) -> int:
    """``total * 4 ** scale`` in units of 2 ** -_UNIT, exactly."""
    mantissa, exponent = math.frexp(total)
    return int(math.ldexp(mantissa, 53)) << (exponent - 53 + 2 * scale + _UNIT)


class Differences(Struct, frozen=True):
    """The differences of some elements; ``x + y`` is the result for both parts, in any order.

    Attributes:
        elements: the number that differ.
        nonfinite: the number of differing elements that are NaN or infinite on at least one side.
        nans, infinities: the numbers of elements that are NaN, or infinite, in A and in B.
        largest: the largest absolute difference; None if no two finite elements differ.
        at: row-major number of the element with that difference; without one, of the first that differs.
        squares: exact sum of the squared differences, in units of 2 ** -2400.
        squares_a: the same for the squared elements of A, where A and B are finite.
    """

    elements: int = 0
    nonfinite: int = 0
    nans: tuple[int, int] = (0, 0)
    infinities: tuple[int, int] = (0, 0)
    largest: int | float | None = None
    at: int | None = None
    squares: int = 0
    squares_a: int = 0

    def __add__(self, other: Differences) -> Differences:
        """Both parts together; if largest differences are equal, the first in row-major order counts."""
        found = min((self, other), key=_order)
        return Differences(
            self.elements + other.elements,
            self.nonfinite + other.nonfinite,
            _added(self.nans, other.nans),
            _added(self.infinities, other.infinities),
            found.largest,
            found.at,
            self.squares + other.squares,
            self.squares_a + other.squares_a,
        )

    @property
    def relative(self) -> float:
        """The norm of the difference over the norm of A; 0.0 for no difference, inf if only A is 0."""
        return _root_of_ratio(self.squares, self.squares_a)


def _order(found: Differences) -> tuple[bool, float, float]:
    size = -1 if found.largest is None else found.largest
    return found.at is None, -size, math.inf if found.at is None else found.at


def _added(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]


def _root_of_ratio(a: int, b: int) -> float:
    """The square root of ``a / b``, both of any size."""
    if not a or not b:
        return math.inf if a else 0.0
    shift = (b.bit_length() - a.bit_length() + 128) // 2 * 2
    ratio = (a << shift) // b if shift >= 0 else a // (b << -shift)
    try:
        return math.ldexp(math.isqrt(ratio), -shift // 2)
    except OverflowError:
        return math.inf
