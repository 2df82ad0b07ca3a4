"""LayoutMap: a map from the names of tensors to their layouts, by exact name or regular expression; and scopes of such maps.

Variables that a thread makes in a scope take their layouts from the map. Keys that match none of the names that were looked up are
warned of, once.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, overload

from reshard.errors import LayoutError, LayoutWarning
from reshard.layout.axes import AxesLike
from reshard.layout.bridges.from_keras import own_layout
from reshard.layout.bridges.jax_sharding import is_from_jax
from reshard.layout.device_mesh import DeviceMesh, MeshLike, as_mesh
from reshard.layout.prefixes import pattern_hint
from reshard.layout.tensor_layout import TensorLayout
from reshard.log import warn_caller

if TYPE_CHECKING:
    from jax.sharding import NamedSharding, PartitionSpec


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


Match = Literal["search", "match", "fullmatch"]
Ambiguous = Literal["error", "first"]
Unmatched = Literal["replicate", "error"]
T = TypeVar("T")


class LayoutMap(MutableMapping[str, TensorLayout | None]):
    """Layouts by name: the exact key first, else the keys as regular expressions.

    A dict whose *look-up* (``map[name]``, ``get``) takes the name of a tensor, while everything else
    (``in``, ``del``, ``pop``, ``setdefault``, ``len``, iteration) is about the keys as they were set.

    Args:
        device_mesh: the mesh of every layout that is set without one; a DeviceMesh or a ``jax.sharding.Mesh``.
        mesh: the same, by the name that Keras 2 had for it.
        match: the function of ``re`` that a key must satisfy: ``search`` finds it anywhere in the name,
            ``match`` at its beginning, ``fullmatch`` from beginning to end.
        ambiguous: if several keys match, ``error`` raises and ``first`` takes the first one set.
        unmatched: if no key matches, ``replicate`` gives None, which means "replicated", and ``error`` raises.

    >>> layouts = LayoutMap(DeviceMesh((8,), ("model",)))
    >>> layouts["dense.*kernel"] = (None, "model")
    >>> layouts["my_model/dense_1/kernel"].axes
    (None, 'model')
    """

    def __init__(
        self,
        device_mesh: MeshLike | None = None,
        match: Match = "search",
        ambiguous: Ambiguous = "error",
        unmatched: Unmatched = "replicate",
        *,
        mesh: MeshLike | None = None,
    ) -> None:
        _check_choice("match", match, get_args(Match))
        _check_choice("ambiguous", ambiguous, get_args(Ambiguous))
        _check_choice("unmatched", unmatched, get_args(Unmatched))
        if device_mesh is not None and mesh is not None:
            raise LayoutError(
                "device_mesh and mesh are two names of one argument; give one of them"
            )
        given = mesh if device_mesh is None else device_mesh
        self._device_mesh = None if given is None else as_mesh(given)
        self._match = match
        self._ambiguous = ambiguous
        self._unmatched = unmatched
        self._layouts: dict[str, TensorLayout] = {}
        self._patterns: dict[str, re.Pattern[str]] = {}
        self.scope_names = ScopeNames()

    @property
    def device_mesh(self) -> DeviceMesh | None:
        """The mesh of layouts that are set without one."""
        return self._device_mesh

    @property
    def dialect(self) -> str:
        """The constructor arguments for looking names up."""
        choices = {"match": self._match, "ambiguous": self._ambiguous, "unmatched": self._unmatched}
        return ", ".join(f"{name}={choice!r}" for name, choice in choices.items())

    def get_default_mesh(self) -> DeviceMesh | None:
        """The mesh on which a variable that no key matches is replicated; the same as ``device_mesh``."""
        return self._device_mesh

    def scope(self) -> AbstractContextManager[LayoutMap]:
        """A scope whose variables are lazy and get their layouts from this map: see ``layout_map_scope``."""
        return layout_map_scope(self)

    def __getitem__(self, name: str) -> TensorLayout | None:
        """The layout of the tensor ``name``, or None if no key matches.

        Raises LayoutError if several match and ``ambiguous`` is ``"error"``, or none does and
        ``unmatched`` is ``"error"``.
        """
        _check_name(name)
        if name in self._layouts:
            return self._layouts[name]
        keys = self.match(name)
        if len(keys) > 1 and self._ambiguous == "error":
            raise LayoutError(
                f"{name!r} matches multiple layout specification keys: {', '.join(map(repr, keys))}; "
                f"narrow them, set the exact name, or use ambiguous='first'"
            )
        if not keys and self._unmatched == "error":
            raise LayoutError(
                f"{name!r} matches no key of the layout map, which has unmatched='error'; set a key for it, "
                f"or make the map with unmatched='replicate'"
            )
        return self._layouts[keys[0]] if keys else None

    def match(self, name: str) -> list[str]:
        """All keys that match ``name``, an equal one first and then in the order they were set."""
        _check_name(name)
        exact = [name] if name in self._layouts else []
        return exact + [
            key
            for key, pattern in self._patterns.items()
            if key != name and getattr(pattern, self._match)(name)
        ]

    @overload
    def get(self, name: str, default: None = None, /) -> TensorLayout | None: ...
    @overload
    def get(self, name: str, default: T, /) -> TensorLayout | T: ...
    def get(self, name: str, default: object = None, /) -> object:
        """Look ``name`` up as ``map[name]`` does; returns ``default`` if that finds None."""
        layout = self[name]
        return default if layout is None else layout

    def __setitem__(
        self, key: str, layout: TensorLayout | AxesLike | PartitionSpec | NamedSharding | None
    ) -> None:
        """Add a layout (also one of Keras), a tuple or list of its axes, or jax's PartitionSpec or NamedSharding.

        An existing key must be deleted first.
        """
        if not isinstance(key, str):
            raise LayoutError(f"a key of a layout map must be a string, not {key!r}")
        if key in self._layouts:
            raise LayoutError(
                f"{key} already exist in the LayoutMap with value {self._layouts[key]}; delete it first"
            )
        pattern = _compile(key)
        self._layouts[key] = self._layout(key, layout)
        self._patterns[key] = pattern

    def _layout(self, key: str, layout: Any) -> TensorLayout:
        layout = own_layout(layout)
        if is_from_jax(layout, "PartitionSpec", "NamedSharding"):
            try:
                return TensorLayout.from_jax(layout, self._device_mesh)
            except LayoutError as error:
                raise LayoutError(f"{key!r}: {error}") from None
        if isinstance(layout, TensorLayout) and layout.device_mesh is not None:
            return layout
        axes = layout.axes if isinstance(layout, TensorLayout) else layout
        if not isinstance(axes, tuple | list):
            raise LayoutError(
                f"{key!r} was given {layout!r}; expected a TensorLayout, a tuple of its axes or a PartitionSpec"
            )
        try:
            return TensorLayout(axes, self._device_mesh)
        except LayoutError as error:
            raise LayoutError(f"{key!r}: {error}") from None

    def copy(self) -> LayoutMap:
        """A map of the same keys, mesh and dialect that changes on its own."""
        twin = LayoutMap(self._device_mesh, self._match, self._ambiguous, self._unmatched)
        twin._layouts, twin._patterns = dict(self._layouts), dict(self._patterns)
        return twin

    __copy__ = copy  # else the copy would change the keys of the original

    def update(self, other: Any = (), /, **layouts: Any) -> None:
        """Sets keys like ``dict.update``; if any of them is wrong, none is set."""
        changed = self.copy()
        super(LayoutMap, changed).update(other, **layouts)
        self._layouts, self._patterns = changed._layouts, changed._patterns

    def __ior__(self, other: Any) -> LayoutMap:
        self.update(other)
        return self

    def __or__(self, other: Any) -> LayoutMap:
        """A new map of the keys of both, which must differ, with the mesh and dialect of this one."""
        if not isinstance(other, Mapping):
            return NotImplemented
        both = self.copy()
        both.update(other)
        return both

    def to_keras(self) -> Any:
        """A ``keras.distribution.LayoutMap`` that finds the same layouts as this map.

        It is a copy: later changes of one do not affect the other. ``ModelParallel`` accepts it.
        """
        from reshard.layout.bridges.keras_distribution import map_to_keras

        return map_to_keras(self)

    def to_mapping(self) -> dict[str, Any]:
        """The content of a layout file that finds the same layouts, for a server or to be stored as JSON.

        Raises LayoutError for keys that are not supported as patterns of layout files (docs/reference/layout-files.md), for
        ``ambiguous="error"`` with several keys, and for layouts over another mesh than the map's.
        """
        from reshard.layout.layout_file import map_as_file

        return map_as_file(
            self._device_mesh,
            self._layouts,
            match=self._match,
            unmatched=self._unmatched,
            is_first=self._ambiguous == "first",
        )

    @classmethod
    def from_keras(cls, layouts: Any) -> LayoutMap:
        """The same keys, layouts and mesh, looked up as the installed Keras does."""
        from reshard.layout.bridges.keras_distribution import map_from_keras

        return map_from_keras(layouts)

    def __delitem__(self, key: str) -> None:
        if key not in self._layouts:
            raise KeyError(key)
        del self._layouts[key], self._patterns[key]

    def pop(self, key: str, *default: Any) -> Any:
        """Remove exactly this key and return its layout."""
        layout = self._layouts.pop(key, *default)
        self._patterns.pop(key, None)
        return layout

    def popitem(self) -> tuple[str, TensorLayout]:
        """Remove the key that was set last, and return it and its layout."""
        key, layout = self._layouts.popitem()
        del self._patterns[key]
        return key, layout

    def setdefault(self, key: str, default: TensorLayout | AxesLike | None = None) -> TensorLayout:
        """The layout of exactly this key, which is set to ``default`` if it is missing."""
        if key not in self._layouts:
            self[key] = default
        return self._layouts[key]

    def __contains__(self, key: object) -> bool:
        """True if exactly this key was set; ``map[name] is not None`` tests whether a name has a layout."""
        return key in self._layouts

    def __iter__(self) -> Iterator[str]:
        return iter(self._layouts)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._layouts)

    def __len__(self) -> int:
        return len(self._layouts)

    def __repr__(self) -> str:
        return f"LayoutMap({self._device_mesh}, match={self._match!r}, {self._layouts})"


def _check_choice(option: str, found: str, known: tuple[str, ...]) -> None:
    if found not in known:
        raise LayoutError(f"{option}={found!r} is not one of {', '.join(map(repr, known))}")


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise LayoutError(
            f"a layout map is looked up by the name of a tensor, a string, not by {name!r:.80}"
        )


def _compile(key: str) -> re.Pattern[str]:
    try:
        return re.compile(key)
    except re.error as error:
        raise LayoutError(
            f"key {key!r} is not a regular expression: {error.msg} at position {error.pos}; put a "
            f"backslash before characters that stand for themselves"
        ) from None
    except (OverflowError, RecursionError):
        raise LayoutError(f"key {key[:80]!r} is too large for a regular expression") from None
