"""Runs a script on probes of tiny models, and learns its map."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from reshard.maps.example.infer import Example, Inferred, infer
from reshard.maps.example.probes import make_probes

Array = npt.NDArray[Any]
Tree = Mapping[str, Array]
Script = Callable[[Tree], dict[str, Array]]


def zeros(shapes: Mapping[str, Sequence[int]], dtype: Any = np.float32) -> dict[str, Array]:
    """A source of these shapes."""
    return {name: np.zeros(shape, dtype) for name, shape in shapes.items()}


def example(source: Tree, script: Script, **sizes: int) -> Example:
    """What the script makes of each probe of a source."""
    probes = make_probes(source)
    made = [{n: np.ascontiguousarray(a) for n, a in script(p).items()} for p in probes]
    return Example(probes, made, sizes)


def learned(source: Tree, script: Script, *more: Tree, **sizes: int) -> Inferred:
    """The map that is learned from one source or several."""
    return infer([example(each, script, **sizes) for each in (source, *more)])
