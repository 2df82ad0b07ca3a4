"""Scopes of layout maps: variables that a thread makes inside take their layouts from the map."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING

from reshard.errors import LayoutError
from reshard.layout.warn import warn_caller

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

    A key that matches no variable raises a ``LayoutWarning``: at the end of the scope, or when the last variable that
    was made in it gets its value.

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
    with entered(layout_map):
        yield layout_map
    warn_of_idle_keys(layout_map)


@contextmanager
def entered(layout_map: LayoutMap) -> Iterator[None]:
    """A scope within this package, such as that of a model which is built after its scope; warns of nothing."""
    before = _CURRENT.layout_map
    _CURRENT.layout_map = layout_map
    try:
        with ExitStack() as hooks:
            for hook in _HOOKS:
                hooks.enter_context(hook())
            yield
    finally:
        _CURRENT.layout_map = before


def warn_of_idle_keys(layout_map: LayoutMap) -> None:
    """Warns of keys that match no variable, unless the map's scope is still open and may make more."""
    if _CURRENT.layout_map is not layout_map:
        warn_caller(layout_map.scope_names.idle_keys(layout_map))
