"""Random trees of tensors, and random layouts for them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.orbax_trees import random_array

Arrays = Mapping[str, np.ndarray]
"""The arrays of a tree by name."""

KEYS = ("w", "b", "layers", "0", "model.layers.0.w", "a.b", "c/d", "x y", "ünï", "重み", "__x__")
SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 24)
MESHES = ({"x": 1}, {"x": 8}, {"data": 4, "model": 2}, {"a": 2, "b": 3}, {"a": 2, "b": 2, "c": 2})


@st.composite
def arrays(draw: st.DrawFn, dtypes: Sequence[str]) -> np.ndarray:
    """An array of random bits: a scalar, an empty one, or one of up to four dimensions."""
    sizes = st.lists(st.sampled_from(SIZES), max_size=3) | st.lists(
        st.sampled_from((0, 1, 2, 4)), max_size=4
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return random_array(rng, tuple(draw(sizes)), draw(st.sampled_from(dtypes)))


def trees(dtypes: Sequence[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Flat and nested dicts and lists of arrays, whose names Orbax can tell apart too."""
    of_arrays = st.dictionaries(st.sampled_from(KEYS), arrays(dtypes), min_size=1, max_size=4)
    nested = st.recursive(
        of_arrays,
        lambda inner: (
            st.dictionaries(st.sampled_from(KEYS), inner | arrays(dtypes), min_size=1, max_size=3)
            | st.lists(inner | arrays(dtypes), min_size=1, max_size=3)
        ),
        max_leaves=4,
    )
    return nested.filter(lambda tree: isinstance(tree, dict) and _has_distinct_names(tree))


def flat(tree: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of a tree of dicts and lists, by name."""
    return dict(_leaves(tree, ""))


def _leaves(tree: Any, name: str) -> Iterator[tuple[str, np.ndarray]]:
    if not isinstance(tree, dict | list):
        yield name.removeprefix("/"), tree
        return
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from _leaves(value, f"{name}/{key}")


def _has_distinct_names(tree: Mapping[str, Any]) -> bool:
    """Orbax's files have dots for slashes, and a file cannot be a folder."""
    names = sorted(name.replace("/", ".") for name, _ in _leaves(tree, ""))
    return len(set(names)) == len(names)


@st.composite
def layouts(draw: st.DrawFn, held: Arrays, *, only_meshes: bool) -> dict[str, Any]:
    """A layout file: axes that divide each tensor, and uneven partitions where they are allowed."""
    mesh = draw(st.sampled_from(MESHES))
    rules, partitions = [], []
    for name, array in held.items():
        match = f"^{re.escape(name)}$"
        long = [dim for dim, size in enumerate(array.shape) if size > 1]
        if long and not only_meshes and draw(st.integers(0, 3)) == 0:
            axis = draw(st.sampled_from(long))
            shards = draw(st.integers(1, min(5, array.shape[axis])))
            partitions.append({"match": match, "fixed_shards": shards, "axis": axis})
        else:
            rules.append({"match": match, "axes": draw(axes(array.shape, mesh))})
    return {"mesh": mesh, "rules": rules, "partitions": partitions, "unmatched": "replicate"}


@st.composite
def axes(draw: st.DrawFn, shape: Sequence[int], mesh: Mapping[str, int]) -> list[Any]:
    """Mesh axes that divide each dimension, none used twice."""
    left, chosen = dict(mesh), []
    for size in shape:
        names: list[str] = []
        for name in draw(st.permutations(list(left))):
            split = math.prod(mesh[n] for n in [*names, name])
            if size % split == 0 and draw(st.booleans()):
                names.append(name)
                del left[name]
        chosen.append(names or None)
    return chosen


@st.composite
def boxes(draw: st.DrawFn, shape: Sequence[int]) -> tuple[slice, ...]:
    """A box of a tensor; () of a scalar."""
    bounds = [sorted(draw(st.tuples(*[st.integers(0, size)] * 2))) for size in shape]
    return tuple(slice(*bound) for bound in bounds)
