"""Copies: a target as strided copies of source tensors, each with a factor and an addend (Fit).

Sequences of rows of numbers are written as nested loops; each loop adds the same step to every number::

    0 1 2 10 11 12        3 times 1, within 2 times 10
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.maps.example.probes import (
    CONSTANT,
    SEVERAL,
    SHORTEST,
    TOO_SHORT,
    UNKNOWN,
    Numbering,
    Origins,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Rows = npt.NDArray[Any]


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


_INDEX = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])", re.ASCII)
"""A number that stands alone in a name is an index."""


class Named(Struct, frozen=True):
    """Tensors of one kind: names that are alike but for numbers, of one shape and dtype.

    Attributes:
        name: with ``{}`` for each number.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


class Loop(Struct, frozen=True):
    """A loop of a copy.

    Attributes:
        target, source: its steps, in elements.
        numbers: its step of each number in the source's name.
    """

    count: int
    target: int
    source: int
    numbers: tuple[int, ...] = ()


class Copy(Struct, frozen=True):
    """Elements of one kind of source that are in a target.

    Attributes:
        numbers: in the name of the first source.
        target, source: the first element of each.
    """

    kind: Named
    fit: Fit
    loops: tuple[Loop, ...]
    target: int
    source: int
    numbers: tuple[int, ...]


class TargetCopies(Struct, frozen=True):
    """All copies of one target.

    Attributes:
        fill: the element where no source is the origin; None where every element has one.
        off: elements that the script rounds otherwise.
    """

    copies: tuple[Copy, ...]
    fill: float | None
    off: int


def split_name(name: str) -> tuple[str, tuple[int, ...]]:
    """A name with ``{}`` for each number, and the numbers."""
    return _INDEX.sub("{}", name), tuple(map(int, _INDEX.findall(name)))


def copies_of(
    origins: Origins,
    runs: Sequence[Array],
    source: Mapping[str, Array],
    flat: Sequence[Array],
    numbering: Numbering,
) -> TargetCopies:
    """One target as copies; UnexplainedError where it is not made of copies.

    Args:
        runs: the script's output for each probe.
        flat: the elements of each probe, in the order of their numbers, as float32.
    """
    import numpy as np

    numbers = origins.numbers
    _refuse_unknown(numbers)
    fill = _fill_of(runs[-1], numbers)
    grouped: dict[tuple[Named, Fit, tuple[Loop, ...]], list[tuple[int, ...]]] = defaultdict(list)
    off = 0
    for name, mask, found in _pieces(origins, numbering):
        x = np.concatenate([values[numbers[mask]] for values in flat])
        fitted = fit(x, np.concatenate([run[mask] for run in runs]))
        off += fitted.off
        text, own = split_name(name)
        kind = Named(text, source[name].shape, source[name].dtype.name)
        key_fit = Fit(fitted.factor, fitted.addend, fitted.divides)
        for start, from_, loops in found:
            refined = tuple(refine(loops, kind.shape, "source"))
            grouped[kind, key_fit, refined].append((*own, start, from_))
    copies = []
    for (kind, key_fit, inner), rows in grouped.items():
        for nest in nests(np.array(sorted(rows))):
            over = [Loop(count, step[-2], step[-1], step[:-2]) for count, step in nest.loops]
            over = list(refine(list(refine(over, numbers.shape, "target")), kind.shape, "source"))
            *own_, start, from_ = nest.start
            copies.append(Copy(kind, key_fit, (*over, *inner), start, from_, tuple(own_)))
    copies.sort(key=lambda copy: (copy.target, copy.kind.name))
    return TargetCopies(tuple(copies), fill, off)


def _refuse_unknown(numbers: Array) -> None:
    """Raises UnexplainedError for elements that are from no single known place."""
    unknown = int((numbers == UNKNOWN).sum())
    if unknown:
        raise UnexplainedError(
            f"{unknown} of {numbers.size} elements equal no single source element times a constant plus a constant"
        )
    if (numbers == TOO_SHORT).any():
        raise UnexplainedError(
            f"no source tensor matches it. Axes of fewer than {SHORTEST} elements are not searched, because short lines match by chance; "
            "probe a tiny model"
        )
    several = int((numbers == SEVERAL).sum())
    if several:
        raise UnexplainedError(
            f"several places of the source hold {several} of its {numbers.size} elements; take a pair whose values differ, or probe a "
            "tiny model"
        )


def _fill_of(proof: Array, numbers: Array) -> float | None:
    still = proof[numbers == CONSTANT]
    if not still.size:
        return None
    if (still != still.flat[0]).any():
        raise UnexplainedError(
            f"{still.size} elements do not depend on the source and are no single constant (a table, a buffer?)"
        )
    return float(still.flat[0])


def _pieces(
    origins: Origins, numbering: Numbering
) -> Iterator[tuple[str, Array, list[tuple[int, int, list[Loop]]]]]:
    """The name, the mask and the copies of the elements of each source and factor."""
    import numpy as np

    numbers, first = origins.numbers, np.array(numbering.first)
    owner = np.searchsorted(first, numbers, "right") - 1
    for number in np.unique(owner[numbers >= 0]):
        mine = (owner == number) & (numbers >= 0)
        for low, high in _bands_of(origins.factors[mine]):
            mask = mine & (origins.factors >= low) & (origins.factors < high)
            name = numbering.names[number]
            yield name, mask, list(_boxes(numbers - first[number], mask, name))


def _bands_of(factors: Array) -> Iterator[tuple[float, float]]:
    """Ranges of factors that differ by more than rounding."""
    import numpy as np

    seen = np.unique(factors)
    apart = np.diff(seen) > 0.05 * np.abs(seen[1:])
    edges = [-np.inf, *seen[1:][apart], np.inf]
    yield from itertools.pairwise(edges)


def _boxes(numbers: Array, mask: Array, name: str) -> Iterator[tuple[int, int, list[Loop]]]:
    """The copies of one source in one target: start in both, and loops."""
    import numpy as np

    shape = numbers.shape
    every = range(numbers.ndim)
    places = [np.flatnonzero(mask.any(axis=tuple(d for d in every if d != axis))) for axis in every]
    box = numbers[np.ix_(*places)] if places else numbers
    if int(mask.sum()) != box.size:
        raise UnexplainedError(f"what it takes from {name} is no box")
    start, lines = _lines_of(box, name)
    ways = []
    for axis, (at, line) in enumerate(zip(places, lines, strict=True)):
        stride = math.prod(shape[axis + 1 :])
        ways.append(nests(np.stack([at * stride, line], axis=1)))
    for way in itertools.product(*ways):
        target = sum(nest.start[0] for nest in way)
        from_ = start + sum(nest.start[1] for nest in way)
        yield target, from_, [Loop(n, step[0], step[1]) for nest in way for n, step in nest.loops]


def _lines_of(box: Array, name: str) -> tuple[int, list[Array]]:
    """The first number of a box, and the offsets from it along each axis, which add up to all of the box."""
    import numpy as np

    start = int(box.flat[0])
    lines = [
        np.moveaxis(box, axis, 0).reshape(size, -1)[:, 0] - start
        for axis, size in enumerate(box.shape)
    ]
    sum_of = sum(
        line.reshape([-1] + [1] * (box.ndim - axis - 1)) for axis, line in enumerate(lines)
    )
    if (box - start != sum_of).any():
        raise UnexplainedError(f"the order of what it takes from {name} does not split by axes")
    return start, lines


def refine(loops: Sequence[Loop], shape: Sequence[int], side: str) -> Iterator[Loop]:
    """The loops, cut where one goes beyond an axis of its tensor.

    Raises UnexplainedError for a loop that runs backwards, and for one that does not fit the axes.
    """
    for loop in loops:
        step = loop.target if side == "target" else loop.source
        if step < 0:
            raise UnexplainedError("an axis runs backwards, for which maps have no word")
        parts = split_at(loop.count, step, shape)
        if parts is None:
            yield loop
            continue
        outer, inner = parts
        far = Loop(
            outer,
            loop.target * inner,
            loop.source * inner,
            tuple(n * inner for n in loop.numbers),
        )
        near = Loop(inner, loop.target, loop.source, loop.numbers)
        yield from refine([far, near], shape, side)


def split_at(count: int, step: int, shape: Sequence[int]) -> tuple[int, int] | None:
    """The counts outside and inside of a loop that is cut since it goes beyond an axis; None for any other loop."""
    if not step:
        return None
    for axis in range(len(shape)):
        stride = math.prod(shape[axis + 1 :])
        end = stride * shape[axis]
        if stride <= step < end:
            if step * count <= end:
                return None
            inner = end // step
            if end % step or count % inner:
                raise UnexplainedError("a reshape cuts across axes")
            return count // inner, inner
    return None


Row = tuple[int, ...]

_MOST_TRIED = 64
"""Ends of a nest that are tried, where rows are not one nest."""


class Nest(Struct, frozen=True):
    """Rows that nested loops give.

    Attributes:
        start: the first row.
        loops: count and step of each loop, the slowest first.
    """

    start: Row
    loops: tuple[tuple[int, Row], ...]


def nests(rows: Rows) -> list[Nest]:
    """The fewest nests that give the rows in their order; ``rows`` has two axes."""
    return list(_nests(rows))


def _nests(rows: Rows) -> Iterator[Nest]:
    while len(rows):
        loops, count = _longest(rows)
        yield Nest(tuple(map(int, rows[0])), loops)
        rows = rows[count:]


def _longest(rows: Rows) -> tuple[tuple[tuple[int, Row], ...], int]:
    """The loops of the longest beginning that is one nest, and its number of rows."""
    import numpy as np

    loops = _as_one(rows)
    if loops is not None:
        return loops, len(rows)
    steps = np.diff(rows, axis=0)
    changes = np.flatnonzero((np.diff(steps, axis=0) != 0).any(axis=1)) + 2
    # A nest ends where the step changes, with the row before it or the one behind.
    ends = sorted({int(e) for c in changes for e in (c - 1, c)} - {0}, reverse=True)
    if len(ends) > _MOST_TRIED:
        ends = [*ends[:: -(-len(ends) // _MOST_TRIED)], *ends[-8:]]
    for end in ends:
        loops = _as_one(rows[:end])
        if loops is not None:
            return loops, end
    return (), 1


def _as_one(rows: Rows) -> tuple[tuple[int, Row], ...] | None:
    """The loops that give all of the rows; None where one nest does not."""
    import numpy as np

    count = len(rows)
    if count == 1:
        return ()
    steps = np.diff(rows, axis=0)
    step = steps[0]
    is_same = (steps == step).all(axis=1)
    run = count if is_same.all() else int(np.argmin(is_same)) + 1
    for length in range(run, 1, -1):
        if count % length:
            continue
        blocks = rows.reshape(count // length, length, rows.shape[1])
        if (np.diff(blocks, axis=1) == step).all():
            outer = _as_one(blocks[:, 0])
            if outer is not None:
                return (*outer, (length, tuple(map(int, step))))
    return None
