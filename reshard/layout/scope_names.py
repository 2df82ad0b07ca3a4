"""The names that the scopes of a layout map looked up: keys that match none of them are warned of, once."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from reshard.layout.prefixes import pattern_hint

if TYPE_CHECKING:
    from reshard.layout.layout_map import LayoutMap


class ScopeNames:
    """What the variables of a map's scopes are called, as far as it is known.

    A name is known when a variable gets its value, which may be long after the scope. Until then the variable, or the
    model that will make it, waits, and no key can be said to match nothing.
    """

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._waiting: list[tuple[weakref.ref[Any], Callable[[Any], object]]] = []
        self._told: set[str] = set()

    def look_up(self, name: str) -> None:
        """A variable of this name was laid out."""
        self._names[name] = None

    def wait_for(self, maker: Any, is_waiting: Callable[[Any], object]) -> None:
        """``maker``, a variable or a model, brings names as long as ``is_waiting(maker)``, unless it is deleted first."""
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
