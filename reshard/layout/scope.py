"""Scopes of layout maps: variables that a thread makes inside take their layouts from the map."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING

from reshard.errors import LayoutError

if TYPE_CHECKING:
    from reshard.layout.layout_map import LayoutMap


class _Current(threading.local):
    layout_map: LayoutMap | None = None


_CURRENT = _Current()
"""Per thread, as Keras keeps its own; only ``layout_map_scope`` changes it."""


_HOOKS: list[Callable[[], AbstractContextManager[None]]] = []
"""Each hook returns a context manager that every scope enters; one hook replaces two methods of Keras."""


def add_scope_hook(hook: Callable[[], AbstractContextManager[None]]) -> None:
    """Makes every later scope enter the context manager that ``hook()`` returns, after its layout map is set."""
    _HOOKS.append(hook)


def current_layout_map() -> LayoutMap | None:
    """The map of the innermost scope that this thread is in, or None outside of every scope."""
    return _CURRENT.layout_map


@contextmanager
def layout_map_scope(layout_map: LayoutMap) -> Iterator[LayoutMap]:
    """Makes variables lazy: they get their values later, in shards, when their path is known.

    The weights of Keras models get values without a further call: Functional models, and Sequential
    models that know their input, in their constructor; others when they are first built, inside or outside
    of the scope. ``reshard.variables.materialize`` gives values to the variables of plain objects.

    Scopes nest, and the innermost counts. Each thread has its own. Leaving a scope, also by an exception,
    restores the one before. The same as ``layout_map.scope()``. Yields the map. Raises LayoutError for
    anything but a LayoutMap, VariableError for a version of Keras whose private parts differ.

    >>> from reshard.layout.layout_map import LayoutMap
    >>> with layout_map_scope(LayoutMap()) as layouts:
    ...     current_layout_map() is layouts
    True
    """
    from reshard.layout.layout_map import LayoutMap

    if not isinstance(layout_map, LayoutMap):
        raise LayoutError(
            f"a scope needs a LayoutMap, not {layout_map!r}; make one with LayoutMap(mesh) and set its keys"
        )
    before = _CURRENT.layout_map
    _CURRENT.layout_map = layout_map
    try:
        with ExitStack() as entered:
            for hook in _HOOKS:
                entered.enter_context(hook())
            yield layout_map
    finally:
        _CURRENT.layout_map = before
