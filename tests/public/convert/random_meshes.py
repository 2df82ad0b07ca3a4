"""Meshes, random layouts over them, and ways to save with stock Orbax."""

from __future__ import annotations

import itertools
import re
from functools import partial
from typing import Any

from hypothesis import strategies as st
from jax.sharding import Mesh

from tests.orbax_trees import mesh, save_pytree, save_standard, save_v1

MESHES = [mesh((8,), ("x",)), mesh((4, 2), ("data", "model")), mesh((2, 2, 2), ("a", "b", "c"))]


Axes = tuple[Any, ...]


@st.composite
def specs(draw: st.DrawFn, shape: tuple[int, ...], on: Mesh) -> Axes:
    """Mesh axes that divide each dimension, none used twice."""
    left, axes = dict(on.shape), []
    for size in shape:
        chosen: list[str] = []
        for name in draw(st.permutations(list(left))):
            size_of = left[name]
            if size % size_of == 0 and draw(st.booleans()):
                chosen.append(name)
                size //= size_of
                del left[name]
        axes.append(chosen[0] if len(chosen) == 1 else tuple(chosen) or None)
    return tuple(axes)


SAVERS = {
    "standard": save_standard,
    "v1": save_v1,
    **{
        f"pytree{'-ocdbt' if o else ''}{'-zarr3' if z else ''}{'' if c else '-raw'}": partial(
            save_pytree, use_ocdbt=o, use_zarr3=z, use_compression=c
        )
        for o, z, c in itertools.product([False, True], repeat=3)
    },
}


def layout_of(on: Mesh, wanted: dict[str, Axes]) -> dict[str, Any]:
    return {
        "mesh": {"axes": list(on.axis_names), "shape": list(on.devices.shape)},
        "rules": [
            {
                "match": f"^{re.escape(name)}$",
                "axes": [list(a) if isinstance(a, tuple) else a for a in axes],
            }
            for name, axes in wanted.items()
        ],
        "unmatched": "error",
    }
