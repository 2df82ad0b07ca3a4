"""IndexedSlices: new values for some rows of a variable."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from reshard.errors import VariableTypeError


class IndexedSlices(Struct, frozen=True):
    """``values[i]`` belongs to row ``indices[i]``; what the ``scatter_*`` methods take.

    ``indices`` are whole numbers in one dimension, ``values`` has as many rows. What they must fit is
    the variable, which checks it.
    """

    values: Any
    indices: Any


def indexed_slices(delta: Any, values: Any, name: str, method: str) -> IndexedSlices:
    """From either way of calling: ``(indices, values)``, or one object that carries both."""
    if values is not None and not isinstance(values, bool):
        return IndexedSlices(values, delta)
    if hasattr(delta, "indices") and hasattr(delta, "values"):
        return IndexedSlices(delta.values, delta.indices)
    raise VariableTypeError(
        f"{method} of {name!r} expects IndexedSlices(values, indices), or indices and values, not "
        f"a {type(delta).__name__} alone"
    )
