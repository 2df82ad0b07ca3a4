"""Random rules, each with sources and with what einops and numpy make of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import einops
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from reshard.geometry.dtypes import numpy_dtype
from tests.maps.meaning import dimensions, made_by_meaning

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
Axes = Sequence[Sequence[str]]
"""The dimensions that each axis of a tensor merges; none for an axis of one element."""

DTYPES = ("float32", "bfloat16", "float16", "int8", "float64")
PARTS = (("p",), ("q",), ("p", "q"))
"""The dimensions of one of several parts that lie one behind the other."""


class RandomRule(Struct, frozen=True):
    """A rule of a map.

    Attributes:
        rule: as a map has it.
        sizes: of every dimension.
        sources, targets: the tensors that the rule takes, and those that it makes, as einops and numpy make them.
        is_exact: whether the sources follow from the targets, bit by bit.
    """

    rule: Mapping[str, Any]
    sizes: Mapping[str, int]
    sources: Arrays
    targets: Arrays
    is_exact: bool = True

    @property
    def given(self) -> dict[str, int]:
        """The sizes to give; 0 cannot be given, but follows from the others."""
        return {name: size for name, size in self.sizes.items() if size}

    @property
    def given_backwards(self) -> dict[str, int]:
        """The sizes to give where it is read from right to left."""
        return {
            **self.given,
            **{f"{n}_padded": size for n, size in self.rule.get("pad", {}).items()},
        }

    @property
    def turned(self) -> RandomRule:
        """It from right to left."""
        left, right = self.rule["shape"].split(" -> ")
        rule = {
            "from": self.rule["to"],
            "to": self.rule["from"],
            "shape": f"{right} -> {left}",
        }
        return replace(self, rule=rule, sources=self.targets, targets=self.sources)


def rules(prefix: str = "") -> st.SearchStrategy[RandomRule]:
    """Rules of every kind; all names begin with the prefix."""
    fused = _fusing(prefix)
    return _moving(prefix) | _computing(prefix) | fused | fused.map(lambda rule: rule.turned)


def _shape(axes: Axes) -> str:
    """Axes as words of a shape, which einops reads, too."""
    words = (
        " ".join(dims) if len(dims) == 1 else f"({' '.join(dims)})" if dims else "1"
        for dims in axes
    )
    return " ".join(words)


@st.composite
def _axes(draw: st.DrawFn, dims: Sequence[str]) -> list[list[str]]:
    """Dimensions in any order, some of them merged, and perhaps an axis of one element."""
    axes: list[list[str]] = []
    for dim in draw(st.permutations(dims)):
        if axes and draw(st.integers(0, 2)) == 0:
            axes[-1].append(dim)
        else:
            axes.append([dim])
    if not axes or draw(st.integers(0, 5)) == 0:
        axes.insert(draw(st.integers(0, len(axes))), [])
    return axes


@st.composite
def _sizes(draw: st.DrawFn, dims: Sequence[str], named: Sequence[str]) -> dict[str, int]:
    """Sizes, of which those of ``named`` count tensors; at most one is 0, and follows from the others."""
    sizes = {dim: draw(st.integers(1, 5)) for dim in dims}
    counted = [dim for dim in dims if dim not in named]
    if counted and draw(st.integers(0, 4)) == 0:
        sizes[draw(st.sampled_from(counted))] = 0
    return sizes


def _some(dims: Sequence[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(dims), max_size=2, unique=True) if dims else st.just([])


def _name(begin: str, indices: Sequence[str]) -> str:
    return "/".join((begin, *(f"{{{index}}}" for index in indices)))


def _values(indices: Sequence[str], sizes: Mapping[str, int]) -> list[dict[str, int]]:
    ways = itertools.product(*(range(sizes[index]) for index in indices))
    return [dict(zip(indices, way, strict=True)) for way in ways]


@st.composite
def _tensors(
    draw: st.DrawFn, name: str, indices: Sequence[str], axes: Axes, sizes: Mapping[str, int]
) -> dict[str, Array]:
    """A tensor for each value of the indices, with elements that differ."""
    shape = [int(np.prod([sizes[dim] for dim in dims], dtype=int)) for dims in axes]
    dtype = numpy_dtype(draw(st.sampled_from(DTYPES)))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    return {
        name.format(**values): (random.integers(-60, 60, shape) / 2).astype(dtype)
        for values in _values(indices, sizes)
    }


def _rearranged(
    tensors: Arrays, left: str, right: str, counts: Sequence[int], sizes: Mapping[str, int]
) -> Array:
    """Tensors stacked along their indices, of which there are so many, and rearranged by einops."""
    first = next(iter(tensors.values()))
    stacked = np.stack(list(tensors.values())).reshape(*counts, *first.shape)
    mentioned = {n: size for n, size in sizes.items() if n in _words(left) | _words(right)}
    found: Array = einops.repeat(stacked, f"{left} -> {right}", **mentioned)
    return found


def _words(shape: str) -> set[str]:
    return set(shape.replace("(", " ").replace(")", " ").split())


def _apart(made: Array, name: str, loops: Sequence[str], sizes: Mapping[str, int]) -> Arrays:
    """The targets of an array that has the indices of their names before its axes."""
    every = _values(loops, sizes)
    return {name.format(**each): np.ascontiguousarray(made[tuple(each.values())]) for each in every}


@st.composite
def _moving(draw: st.DrawFn, prefix: str) -> RandomRule:
    """One tensor, or a stack of them, is turned, split, merged, stacked and repeated."""
    dims = ["a", "b", "c", "d", "e"][: draw(st.integers(1, 5))]
    stacked, loops = draw(_some(dims)), draw(_some(dims))
    copies = ["r"] if draw(st.integers(0, 4)) == 0 else []
    left = draw(_axes([dim for dim in dims if dim not in stacked]))
    right = draw(_axes([*(dim for dim in dims if dim not in loops), *copies]))
    sizes = draw(_sizes([*dims, *copies], [*stacked, *loops, *copies]))
    source, target = _name(f"{prefix}s", stacked), _name(f"{prefix}t", loops)
    sources = draw(_tensors(source, stacked, left, sizes))
    made = _rearranged(
        sources,
        f"{' '.join(stacked)} {_shape(left)}",
        f"{' '.join(loops)} {_shape(right)}",
        [sizes[index] for index in stacked],
        sizes,
    )
    rule = {"from": source, "to": target, "shape": f"{_shape(left)} -> {_shape(right)}"}
    return RandomRule(rule, sizes, sources, _apart(made, target, loops, sizes), not copies)


@st.composite
def _computing(draw: st.DrawFn, prefix: str) -> RandomRule:
    """Dimensions are padded and cut off, elements pass through arithmetic, and are cast."""
    before = draw(_moving(prefix) | _fusing(prefix))
    before = draw(st.sampled_from([before, before.turned])) if before.is_exact else before
    rule, sources, sizes = dict(before.rule), before.sources, before.sizes
    dims, dtype = dimensions(rule), next(iter(sources.values())).dtype
    is_exact = before.is_exact
    for dim in draw(_some(dims)):
        length = draw(st.integers(1, 6))
        key = "pad" if length >= sizes[dim] else "crop"
        rule[key] = {**rule.get(key, {}), dim: length}
        is_exact &= key == "pad" and sizes[dim] > 0 and f"{{{dim}}}" not in str(rule["from"])
    rule |= {"fill": 3} if "pad" in rule and draw(st.booleans()) else {}
    if draw(st.integers(0, 3)) == 0:
        rule["cast"] = draw(st.sampled_from(("float32", "bfloat16", "float64")))
        is_exact &= rule["cast"] == str(dtype)
    if dtype.kind != "i" and dtype != np.float64 and draw(st.booleans()):
        by = {"multiply": 1.5, "divide": 0.75, "add": -2}
        keys = draw(st.lists(st.sampled_from(list(by)), min_size=1, unique=True))
        rule |= {key: by[key] for key in keys}
        is_exact = False
        sources = {name: _computed(array, rule) for name, array in sources.items()}
    kind = numpy_dtype(rule.get("cast", dtype.name))
    made = made_by_meaning(rule, sources, sizes)
    targets = {name: array.astype(kind) for name, array in made.items()}
    return RandomRule(rule, sizes, before.sources, targets, is_exact)


def _computed(array: Array, rule: Mapping[str, Any]) -> Array:
    """In float32, rounded once to the dtype of the tensor; a cast that follows rounds what was computed."""
    found = array.astype(np.float32) * np.float32(rule.get("multiply", 1))
    found = found / np.float32(rule.get("divide", 1)) + np.float32(rule.get("add", 0))
    return found if "cast" in rule else found.astype(array.dtype)


@st.composite
def _fusing(draw: st.DrawFn, prefix: str) -> RandomRule:
    """Several tensors become parts of one, somewhere within an axis."""
    shared = ["a", "b", "c"][: draw(st.integers(0, 3))]
    stacked, loops = draw(_some(shared)), draw(_some(shared))
    parts = draw(st.lists(st.sampled_from(PARTS), min_size=2, max_size=3))
    sizes = draw(_sizes([*shared, "p", "q"], [*stacked, *loops]))
    right = draw(_axes([*(dim for dim in shared if dim not in loops), "PARTS"]))
    flat = [dim for dims in right for dim in dims]
    target = _name(f"{prefix}t", loops)
    own = [dim for dim in shared if dim not in stacked]
    names, lefts, sources, pieces = [], [], {}, []
    dtype = None
    for number, part in enumerate(parts):
        left = draw(_axes([*own, *part]))
        name = _name(f"{prefix}s{number}", stacked)
        tensors = draw(_tensors(name, stacked, left, sizes))
        dtype = dtype or next(iter(tensors.values())).dtype
        tensors = {n: a.astype(dtype) for n, a in tensors.items()}
        whole = " ".join(f"({' '.join(part)})" if dim == "PARTS" else dim for dim in flat)
        pieces.append(
            _rearranged(
                tensors,
                f"{' '.join(stacked)} {_shape(left)}",
                f"{' '.join(loops)} {whole}",
                [sizes[index] for index in stacked],
                sizes,
            )
        )
        names.append(name)
        lefts.append(_shape(left))
        sources |= tensors
    joined = np.concatenate(pieces, axis=len(loops) + flat.index("PARTS"))
    every = " ".join(loops)
    made = einops.rearrange(joined, f"{every} {' '.join(flat)} -> {every} {_shape(right)}")
    written = _shape(right).replace("PARTS", f"[{' | '.join(' '.join(part) for part in parts)}]")
    rule = {"from": names, "to": target, "shape": f"{', '.join(lefts)} -> {written}"}
    used = {n: s for n, s in sizes.items() if n in {*shared, *(d for part in parts for d in part)}}
    return RandomRule(rule, used, sources, _apart(made, target, loops, sizes))
