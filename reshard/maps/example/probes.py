"""Probes: copies of a tiny checkpoint whose values tell the origin of each element.

Every element of the source has a number. A run carries one digit of it, in base 31, so that bfloat16, float16 and int8 hold it
exactly; the second run is the first and 32 more, the third 64 minus the first, which tells factor and addend apart. The last run has
random values, by which the map is proved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.errors import PlanError

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

BASE = 31
STEP = 32
"""Between the first run and the second; digits are 1 to 31, so that no run has a zero."""

_SCATTER = 982_451_653
"""A prime: numbers are multiplied by it, so that no two tensors look alike in any run."""

MOST_ELEMENTS = 50_000_000
"""Limit for a source that is probed; a tiny model has some thousands."""
MOST_OF_A_PAIR = 200_000_000
"""Limit for either of two real checkpoints; some 30 bytes of memory are taken for each element."""

_WHOLE = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_PROBED = frozenset({"float32", "float64", "bfloat16", "float16", *_WHOLE})


class Numbering(Struct, frozen=True):
    """The numbers of all elements of a source.

    Attributes:
        names: of the tensors, sorted.
        first: the number of the first element of each, and at the end the total.
    """

    names: tuple[str, ...]
    first: tuple[int, ...]

    @classmethod
    def of(cls, source: Mapping[str, Array]) -> Numbering:
        """The numbering of these arrays."""
        names = tuple(sorted(source))
        first = [0]
        for name in names:
            first.append(first[-1] + source[name].size)
        return cls(names, tuple(first))

    @property
    def total(self) -> int:
        return self.first[-1]

    @property
    def digits(self) -> int:
        """Number of digits of an element's number."""
        return max(1, math.ceil(math.log(max(2, self.total), BASE)))


def make_probes(source: Mapping[str, Array], seed: int = 0) -> list[dict[str, Array]]:
    """The sources on which the trusted script is to be run, the random one last.

    Raises PlanError for dtypes whose elements hold no digit, and for too many elements.
    """
    import numpy as np

    numbering = Numbering.of(source)
    _check(source, numbering)
    digits = numbering.digits
    scattered = np.arange(numbering.total, dtype=np.int64) * _SCATTER % BASE**digits
    planes = [scattered // BASE**k % BASE + 1 for k in range(digits)]
    values = [planes[0], planes[0] + STEP, 2 * STEP - planes[0], *planes[1:]]
    random = np.random.default_rng(seed)
    runs = [
        {
            name: run[a:b].astype(source[name].dtype).reshape(source[name].shape)
            for name, a, b in zip(
                numbering.names, numbering.first, numbering.first[1:], strict=False
            )
        }
        for run in values
    ]
    return [*runs, {name: _drawn(source[name], random) for name in numbering.names}]


def _drawn(like: Array, random: Any) -> Array:
    whole = like.dtype.kind in "iu"
    drawn = random.integers(1, 99, like.size) if whole else random.standard_normal(like.size) * 0.1
    found: Array = drawn.astype(like.dtype).reshape(like.shape)
    return found


def _check(source: Mapping[str, Array], numbering: Numbering) -> None:
    for name in numbering.names:
        if source[name].dtype.name not in _PROBED:
            raise PlanError(
                f"{name!r} is {source[name].dtype.name}, whose elements hold no digit of a probe; leave it out (drop), or cast it first"
            )
    if numbering.total > MOST_ELEMENTS:
        raise PlanError(
            f"the source has {numbering.total:,} elements, and probes are for tiny models of at most {MOST_ELEMENTS:,}; make one with "
            "fewer layers and smaller sizes"
        )


CONSTANT = -1
UNKNOWN = -2
SEVERAL = -3
TOO_SHORT = -4

SHORTEST = 8
"""Length of a line by which real values are found again: shorter ones are alike by chance in bfloat16."""


class Origins(Struct, frozen=True):
    """The origins of the elements of one target.

    Attributes:
        numbers: of the source elements; CONSTANT or UNKNOWN where none is the origin, SEVERAL where any of several may be,
            TOO_SHORT where nothing is found and axes are too short to look along.
        factors: by which each was multiplied, as far as the runs tell.
    """

    numbers: Array
    factors: Array


def read_origins(
    numbering: Numbering, outputs: Sequence[Mapping[str, Array]]
) -> dict[str, Origins]:
    """The origins of each target, from the script's output for each probe."""
    return {name: _origins(numbering, [output[name] for output in outputs]) for name in outputs[0]}


def _origins(numbering: Numbering, runs: Sequence[Array]) -> Origins:
    import numpy as np

    modulus = BASE**numbering.digits
    y = [run.astype(np.float64) for run in runs]
    with np.errstate(all="ignore"):
        factors = (y[1] - y[0]) / STEP
        lowest = np.rint(STEP / 2 + (y[1] - y[2]) / (2 * factors))
        others = [np.rint(lowest + (run - y[0]) / factors) for run in y[3:-1]]
        digits = np.stack([lowest, *others])
        is_digit = ((digits >= 1) & (digits <= BASE)).all(axis=0)
        scattered = np.zeros(y[0].shape, np.int64)
        for k, digit in enumerate(digits):
            scattered += np.where(is_digit, digit - 1, 0).astype(np.int64) * BASE**k
    numbers = scattered * pow(_SCATTER, -1, modulus) % modulus
    is_constant = np.all([run == y[0] for run in y], axis=0)
    is_found = is_digit & (numbers < numbering.total) & ~is_constant
    return Origins(np.where(is_constant, CONSTANT, np.where(is_found, numbers, UNKNOWN)), factors)
