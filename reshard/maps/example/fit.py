"""Fit: the factor and the addend that make elements of a target from elements of a source."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


_SLACK = 4.01
"""In half units in the last place."""


class UnexplainedError(ValueError):
    """No rule makes a target; the text says why."""


class Fit(Struct, frozen=True):
    """``x * factor + addend``, in float32 and rounded once.

    Attributes:
        divides: true if the script divides by ``1 / factor``, which rounds otherwise.
        off: elements that the script rounds otherwise, by one unit in the last place.
    """

    factor: float = 1.0
    addend: float = 0.0
    divides: bool = False
    off: int = 0


def fit(x: Array, y: Array) -> Fit:
    """The simplest arithmetic that makes ``y`` of ``x``; UnexplainedError where none does."""
    import numpy as np

    if (x.astype(y.dtype) == y).all():
        return Fit()
    source, made = x.astype(np.float64), y.astype(np.float64)
    around = source - source.mean()
    factor = float((around * (made - made.mean())).sum() / max(float((around**2).sum()), 1e-300))
    addend = float(made.mean() - factor * source.mean())
    unit = _unit(y.dtype)
    near = max(8 * unit, 1e-7)
    size, largest = abs(factor) or 1e-9, float(np.abs(made).max())
    best: Fit | None = None
    factors = [f for f in _tidy(factor) if abs(f - factor) <= near * size]
    addends = [a for a in _tidy_addends(addend) if abs(a - addend) <= near * largest]
    for f, a in itertools.product(factors, addends):
        found = _tried(x, y, f, a, unit)
        if found is not None and (best is None or found.off < best.off):
            best = found
    best = best or _tried(x, y, factor, addend, unit)
    if best is None:
        raise UnexplainedError(
            "it looks like single elements of the source, but not with random values (a mean, a sum, a product, a quantisation?)"
        )
    return best


def _tidy_addends(addend: float) -> Iterable[float]:
    return dict.fromkeys((0.0, float(round(addend)), round(addend * 64) / 64))


def _tidy(factor: float) -> Iterator[float]:
    """Numbers near a factor that people write, and those that bfloat16 rounds them to."""
    import ml_dtypes

    size = abs(factor) or 1e-9
    yield 1.0
    yield float(round(factor))
    near = (
        2.0 ** round(math.log2(size)),
        math.sqrt(round(size * size)),
        1 / math.sqrt(max(1, round(size**-2))),
        1 / max(1, round(1 / size)),
        float(ml_dtypes.bfloat16(size)),
        1 / float(ml_dtypes.bfloat16(1 / size)),
    )
    for value in near:
        yield math.copysign(value, factor)


def _tried(x: Array, y: Array, factor: float, addend: float, unit: float) -> Fit | None:
    import numpy as np

    wide, wanted, best = x.astype(np.float32), y.astype(np.float64), None
    for divides in (False, True):
        if divides and (not factor or (best is not None and not best.off)):
            break
        scaled = wide / np.float32(1 / factor) if divides else wide * np.float32(factor)
        made = (scaled + np.float32(addend)).astype(y.dtype)
        # A product and a quotient may differ by two units in the last place.
        is_near = np.abs(made.astype(np.float64) - wanted) <= _SLACK * unit * np.abs(wanted)
        off = int((made != y).sum())
        if is_near.all() and (best is None or off < best.off):
            best = Fit(factor, addend, divides, off)
    return best


def _unit(dtype: Any) -> float:
    """Half a unit in the last place, relative."""
    import ml_dtypes

    if dtype.kind in "iu":
        return float(2.0**-52)
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call] # ml_dtypes has no types for it
    return float(2.0 ** -(info.nmant + 1))
