"""Solves the sizes of dimensions from the shapes of tensors: each axis is an equation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from reshard.maps.shape import AxisItem, AxisItems, Parts, names_of, shape_text


class Equation(Struct, frozen=True):
    """An axis of a tensor and its length.

    Attributes:
        where: such as ``"axis 0 of 'q'"``.
    """

    axis: AxisItems
    size: int
    where: str


class ContradictionError(ValueError):
    """No sizes fit the equations."""


def solved_sizes(equations: Sequence[Equation], given: Mapping[str, int]) -> dict[str, int]:
    """Every size that follows; names that do not are left out. Raises ContradictionError where two do not agree."""
    sizes = dict(given)
    while True:
        before = len(sizes)
        for equation in equations:
            _solve(equation.axis, equation.size, equation, sizes)
        if len(sizes) == before:
            break
    for equation in equations:
        found = size_of(equation.axis, sizes)
        if found is not None and found != equation.size:
            raise ContradictionError(
                f"{equation.where} is {equation.size}, but {_sum_text(equation.axis, sizes)} is {found}"
            )
    return sizes


def size_of(axis: AxisItems, sizes: Mapping[str, int]) -> int | None:
    """The length of an axis; None where a size is not known."""
    found = [_item_size(item, sizes) for item in axis]
    return None if None in found else math.prod(n for n in found if n is not None)


def _item_size(item: AxisItem, sizes: Mapping[str, int]) -> int | None:
    if isinstance(item, str):
        return sizes.get(item)
    found = [size_of(part, sizes) for part in item.parts]
    return None if None in found else sum(n for n in found if n is not None)


def _solve(axis: AxisItems, size: int, equation: Equation, sizes: dict[str, int]) -> None:
    """Finds the one item of an axis whose size is not known."""
    unknown = [item for item in axis if _item_size(item, sizes) is None]
    if len(unknown) != 1 or _has_again(axis, unknown[0]):
        return
    known = math.prod(n for item in axis if (n := _item_size(item, sizes)) is not None)
    if not known:
        return
    if size % known:
        raise ContradictionError(
            f"{equation.where} is {equation.size}, which is no multiple of {_sum_text(axis, sizes)}"
        )
    item, rest = unknown[0], size // known
    if isinstance(item, str):
        sizes[item] = rest
    else:
        _solve_parts(item, rest, equation, sizes)


def _has_again(axis: AxisItems, item: AxisItem) -> bool:
    """True if a name of the unknown item is in another item of the axis, too."""
    others = [name for other in axis if other is not item for name in names_of(other)]
    return any(name in others for name in names_of(item))


def _solve_parts(item: Parts, size: int, equation: Equation, sizes: dict[str, int]) -> None:
    unknown = [part for part in item.parts if size_of(part, sizes) is None]
    known = sum(n for part in item.parts if (n := size_of(part, sizes)) is not None)
    if len(unknown) > 1 and len(set(unknown)) == 1:  # equal parts: [d | d]
        each = (size - known) // len(unknown)
        if size >= known and each * len(unknown) == size - known:
            _solve(unknown[0], each, equation, sizes)
        return
    if len(unknown) != 1:
        _solve_common(unknown, size - known, equation, sizes)
        return
    if size < known:
        raise ContradictionError(
            f"{equation.where} is {equation.size}, but its parts alone are {known}"
        )
    _solve(unknown[0], size - known, equation, sizes)


def _solve_common(
    parts: Sequence[AxisItems], size: int, equation: Equation, sizes: dict[str, int]
) -> None:
    """Finds a name that is the only unknown one of every part: ``[r d | d | d]`` gives d where r is known."""
    lacking = {name for part in parts for name in names_of(part) if name not in sizes}
    if len(lacking) != 1:
        return
    (name,) = lacking
    if any(list(names_of(part)).count(name) != 1 for part in parts):
        return
    each = sum(size_of(part, {**sizes, name: 1}) or 0 for part in parts)
    if each <= 0 or size % each:
        raise ContradictionError(
            f"{equation.where} is {equation.size}, which {_parts_text(parts)} cannot fill with a whole {name}"
        )
    sizes[name] = size // each


def _parts_text(parts: Sequence[AxisItems]) -> str:
    return f"[{' | '.join(shape_text((part,)) for part in parts)}]"


def _sum_text(axis: AxisItems, sizes: Mapping[str, int]) -> str:
    named = {name: sizes[name] for name in names_of(axis) if name in sizes}
    values = ", ".join(f"{name} = {n}" for name, n in named.items())
    return f"{shape_text((axis,))} with {values}" if values else shape_text((axis,))
