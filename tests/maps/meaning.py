"""The meaning of a rule's words, one after the other in plain numpy: no views, no boxes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from reshard.maps.read_map import parse_map
from reshard.maps.rule import MapRule
from reshard.maps.shape import AxisItem, Parts, TensorAxes, names_of
from reshard.maps.template import Template

Array = npt.NDArray[Any]
Sizes = Mapping[str, int]


class Part(Struct, frozen=True):
    """A part of a tensor, each of whose dimensions has a name."""

    names: tuple[str, ...]
    array: Array


def made_by_meaning(
    rule: Mapping[str, Any], arrays: Mapping[str, Array], sizes: Sizes
) -> dict[str, Array]:
    """The targets of a rule whose every size is given."""
    (parsed,) = parse_map({"map": [rule]}).rules
    taken = {**sizes, **{name: length.whole(sizes) for name, length in parsed.crop.items()}}
    made = {**taken, **{name: length.whole(taken) for name, length in parsed.pad.items()}}
    shape = parsed.shape
    assert shape is not None
    parts = [
        part
        for template, side in zip(parsed.sources, shape.left, strict=True)
        for part in _apart(_stacked(template, arrays, sizes), side, sizes)
    ]
    found = {}
    for values in _values(_loops(parsed, parts), sizes):
        own = iter(parts)
        for template, side in zip(parsed.targets, shape.right, strict=True):
            ways = (_Way(one, values, taken, made, parsed.fill or 0) for one in own)
            found[template.name({**sizes, **values})] = _together(ways, list(side), (), made)
    return found


def _loops(rule: MapRule, parts: Sequence[Part]) -> list[str]:
    known = {name for part in parts for name in part.names}
    return sorted({n for template in rule.targets for n in template.all_names()} & known)


def _values(names: Sequence[str], sizes: Sizes) -> Iterator[dict[str, int]]:
    for values in itertools.product(*(range(sizes[name]) for name in names)):
        yield dict(zip(names, values, strict=True))


def _stacked(template: Template, arrays: Mapping[str, Array], sizes: Sizes) -> Part:
    """The tensors of a name, along the indices in it."""
    indices = template.indices({})
    every = [arrays[template.name(values)] for values in _values(indices, sizes)]
    counts = [sizes[index] for index in indices]
    return Part(indices, np.stack(every).reshape(*counts, *every[0].shape))


def _apart(whole: Part, side: TensorAxes, sizes: Sizes) -> Iterator[Part]:
    """The parts of a tensor whose axes follow its indices."""
    if not side:
        yield whole
        return
    (axis, *rest), at, shape = side, len(whole.names), whole.array.shape
    if not axis:
        yield from _apart(Part(whole.names, whole.array.squeeze(at)), tuple(rest), sizes)
        return
    first, behind = axis[0], (tuple(axis[1:]), *rest)
    split = (_size(first, sizes), math.prod(_size(item, sizes) for item in axis[1:]))
    array = whole.array.reshape(*shape[:at], *split, *shape[at + 1 :])
    if isinstance(first, str):
        yield from _apart(Part((*whole.names, first), array), behind, sizes)
        return
    ends = itertools.accumulate(_length(part, sizes) for part in first.parts)
    for part, own in zip(first.parts, np.split(array, list(ends)[:-1], at), strict=True):
        yield from _apart(Part(whole.names, own), (part, *behind), sizes)


def _size(item: AxisItem, sizes: Sizes) -> int:
    if isinstance(item, Parts):
        return sum(_length(part, sizes) for part in item.parts)
    return sizes[item]


def _length(items: Sequence[AxisItem], sizes: Sizes) -> int:
    return math.prod(_size(item, sizes) for item in items)


class _Way(Struct, frozen=True):
    """How a part of a source becomes one of a target with these indices."""

    part: Part
    values: Mapping[str, int]
    taken: Sizes
    made: Sizes
    fill: float

    def arranged(self, names: Sequence[str]) -> Array:
        array, own = self.part.array, list(self.part.names)
        for at, name in reversed(list(enumerate(self.part.names))):
            if name in self.values:
                array = array.take(self.values[name], at)
                del own[at]
            elif name in names:
                array = array.take(range(self.taken[name]), at)
            else:
                array = array.squeeze(at)
                del own[at]
        lone = [name for name in names if name not in own]
        array = np.broadcast_to(array, [*(self.taken[name] for name in lone), *array.shape])
        every = [*lone, *own]
        array = array.transpose([every.index(name) for name in names])
        widths = [(0, self.made[name] - self.taken[name]) for name in names]
        return np.pad(array, widths, constant_values=self.fill) if names else array


def _together(
    ways: Iterator[_Way], side: Sequence[Any], names: tuple[str, ...], sizes: Sizes
) -> Array:
    """The tensor that parts make, whose axes follow those of these names."""
    if not side:
        return next(ways).arranged(names)
    (axis, *rest), at = side, len(names)
    if not axis:
        return np.expand_dims(_together(ways, rest, names, sizes), at)
    first, behind = axis[0], [tuple(axis[1:]), *rest]
    if isinstance(first, str):
        array = _together(ways, behind, (*names, first), sizes)
    else:
        parts = [_together(ways, [part, *behind], names, sizes) for part in first.parts]
        array = np.concatenate(parts, at)
    shape = array.shape
    return array.reshape(*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])


def dimensions(rule: Mapping[str, Any]) -> list[str]:
    """The dimensions of the targets."""
    (parsed,) = parse_map({"map": [rule]}).rules
    return sorted(set(names_of(parsed.shape.right))) if parsed.shape else []
