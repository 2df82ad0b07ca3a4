"""Which LayoutMap the variables made by this thread belong to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from reshard.errors import LayoutError

if TYPE_CHECKING:
    from reshard.layout.layout_map import LayoutMap


class _Current(threading.local):
    layout_map: LayoutMap | None = None


_CURRENT = _Current()
"""Per thread, as Keras keeps its own; a scope is entered by ``with`` and there is no other way in."""


def current_layout_map() -> LayoutMap | None:
    """The map of the innermost scope that this thread is in, or None outside of every scope."""
    return _CURRENT.layout_map


@contextmanager
def layout_map_scope(layout_map: LayoutMap) -> Iterator[LayoutMap]:
    """Variables made inside are lazy: they get values, in shards, once ``layout_map`` can be asked for their path.

    The weights of Keras models come alive by themselves: in the constructor of Functional models, and of
    Sequential ones that know their input; else when the model is first built, inside or outside of the
    scope. ``reshard.variables.materialize`` brings those of plain objects to life.

    Scopes nest, the innermost counts; each thread has its own; leaving one, also by an exception,
    restores the one before. The same as ``layout_map.scope()``. Yields the map. Raises LayoutError for
    anything but a LayoutMap, VariableError for a version of Keras whose private parts differ.

    >>> from reshard.layout.layout_map import LayoutMap
    >>> with layout_map_scope(LayoutMap()) as layouts:
    ...     current_layout_map() is layouts
    True
    """
    from reshard.layout.bridges.keras_internals import keras_scope
    from reshard.layout.layout_map import LayoutMap

    if not isinstance(layout_map, LayoutMap):
        raise LayoutError(
            f"a scope needs a LayoutMap, not {layout_map!r}; make one with LayoutMap(mesh) and set its keys"
        )
    before = _CURRENT.layout_map
    _CURRENT.layout_map = layout_map
    try:
        with keras_scope():
            yield layout_map
    finally:
        _CURRENT.layout_map = before
