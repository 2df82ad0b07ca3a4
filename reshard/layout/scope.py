"""Scopes of layout maps: variables that a thread makes inside take their layouts from the map.

Keys that match none of the names that were looked up are warned of, once.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from reshard.errors import LayoutError, LayoutWarning
from reshard.layout.prefixes import pattern_hint
from reshard.log import warn_caller

if TYPE_CHECKING:
    from reshard.layout.layout_map import LayoutMap


class _Current(threading.local):
    layout_map: LayoutMap | None = None


_CURRENT = _Current()
"""Per thread, as Keras keeps its own; only ``layout_map_scope`` changes it."""


_HOOKS: list[Callable[[], AbstractContextManager[None]]] = []
"""Hooks: each returns a context manager that every scope enters; one hook replaces two methods of Keras."""


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
        warn_caller(layout_map.scope_names.idle_keys(layout_map), LayoutWarning)


class ScopeNames:
    """The known names of the variables in a map's scopes.

    A name is known when a variable gets its value, which may be long after the scope. Until then the variable, or the
    model that will make it, waits, and any key may still match it.
    """

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._waiting: list[tuple[weakref.ref[Any], Callable[[Any], object]]] = []
        self._told: set[str] = set()

    def look_up(self, name: str) -> None:
        """Notes that a variable of this name was laid out."""
        self._names[name] = None

    def wait_for(self, maker: Any, is_waiting: Callable[[Any], object]) -> None:
        """Expects more names from ``maker``, a variable or a model, as long as ``is_waiting(maker)`` and it is not deleted."""
        self._waiting.append((weakref.ref(maker), is_waiting))

    def idle_keys(self, layout_map: LayoutMap) -> Iterator[str]:
        """A sentence for each key that matches no name; none while names are still to come, or if there was none."""
        self._waiting = [(maker, waits) for maker, waits in self._waiting if _waits(maker, waits)]
        if self._waiting or not self._names:
            return
        used = {key for name in self._names for key in layout_map.match(name)}
        for key in [key for key in layout_map if key not in used | self._told]:
            self._told.add(key)
            hint = pattern_hint(re.compile(key), list(self._names))
            yield f"the layout map's key {key!r} matches no variable{hint}"


def _waits(maker: weakref.ref[Any], is_waiting: Callable[[Any], object]) -> bool:
    found = maker()
    return found is not None and bool(is_waiting(found))
