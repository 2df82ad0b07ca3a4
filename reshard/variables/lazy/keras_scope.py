"""Makes Keras models lazy in a layout map's scope: their weights get values, in shards, when the model is built.

While any thread is in a scope, two methods of Keras' classes are replaced: ``Layer.add_weight`` makes weights
without values, ``Model.__init__`` claims models. The originals are put back when the last scope of the last
thread ends. A claimed model keeps replacements of ``build``, ``build_from_config`` and ``_maybe_build``, so that
weights that it makes later, also outside of the scope, get values in shards too.

Weights that are made while jax traces, as in the first ``fit``, cannot have values yet. Keras keeps a list
of such variables and gives them values when tracing is over; a model is in that list as a whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

from reshard.errors import VariableError
from reshard.layout.layout_map import current_layout_map, entered
from reshard.variables.lazy.create import check_layouts, materialize_model
from reshard.variables.lazy.keras_internals import (
    WaitingInitializer,
    check_parts,
    in_stateless_scope,
    is_claimed,
    is_made_of_layers,
    keras_on_jax,
    lazy_initializer,
    waiting_variables,
)
from reshard.variables.sharded.in_jax import being_traced

if TYPE_CHECKING:
    from reshard.layout.layout_map import LayoutMap


@contextmanager
def keras_scope() -> Iterator[None]:
    """Makes Keras models lazy inside; does nothing if Keras does not run on jax."""
    keras = keras_on_jax()
    if keras is None:
        yield
        return
    check_parts(keras)
    _PATCHES.enter(keras)
    try:
        yield
    finally:
        _PATCHES.leave(keras)


class _Patches:
    """The two methods of Keras that are replaced while any thread is in a scope."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._scopes = 0
        self._originals: tuple[Any, Any] | None = None

    def enter(self, keras: Any) -> None:
        with self._lock:
            self._scopes += 1
            if self._originals is None:
                self._originals = keras.Layer.add_weight, keras.Model.__init__
                keras.Layer.add_weight = _waiting_weight(keras.Layer.add_weight)
                keras.Model.__init__ = _claiming(keras.Model.__init__)

    def leave(self, keras: Any) -> None:
        with self._lock:
            self._scopes -= 1
            if not self._scopes and self._originals is not None:
                keras.Layer.add_weight, keras.Model.__init__ = self._originals
                self._originals = None


_PATCHES = _Patches()
"""One object for the process, like Keras' classes; the replaced methods check whether their thread is in a scope."""


class _Building(threading.local):
    """Flag of a thread, set in the first build of a claimed model; models inside of that model get values with it."""

    is_under_way = False


_BUILDING = _Building()


def _waiting_weight(original: Any) -> Any:
    @wraps(original)
    def add_weight(layer: Any, *args: Any, **kwargs: Any) -> Any:
        layout_map = current_layout_map()
        if layout_map is None:
            return original(layer, *args, **kwargs)
        before = list(waiting_variables())
        with keras_on_jax().StatelessScope(initialize_variables=False):
            variable = original(layer, *args, **kwargs)
        waiting_variables()[:] = before
        if variable._value is None:
            variable._initializer = WaitingInitializer(
                variable._initializer, layout_map, variable.path
            )
            layout_map.scope_names.wait_for(variable, lazy_initializer)
        return variable

    return add_weight


def _claiming(original: Any) -> Any:
    @wraps(original)
    def __init__(model: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  it becomes that method
        layout_map = current_layout_map()
        if layout_map is not None and not is_claimed(model):
            claim(model, model, layout_map)
            layout_map.scope_names.wait_for(model, lambda model: not model.built)
        original(model, *args, **kwargs)

    return __init__


def claim(layer: Any, root: Any, layout_map: LayoutMap) -> None:
    """Gives values to weights that ``layer`` makes from now on, laid out by their paths below the model ``root``."""

    def in_shards(method: Any, is_done: Callable[[], bool]) -> Any:
        @wraps(method)
        def build(*args: Any, **kwargs: Any) -> Any:
            if is_done():
                return method(*args, **kwargs)
            return _in_first_build(layer, root, layout_map, lambda: method(*args, **kwargs))

        return build

    # setattr would make Keras look for layers in these functions.
    vars(layer).update(
        build=in_shards(layer.build, lambda: False),
        build_from_config=in_shards(layer.build_from_config, lambda: False),
        _maybe_build=in_shards(layer._maybe_build, lambda: layer.built),
    )


def _in_first_build(layer: Any, root: Any, layout_map: LayoutMap, build: Callable[[], Any]) -> Any:
    is_functional = is_made_of_layers(layer) and not isinstance(layer, keras_on_jax().Sequential)
    if _BUILDING.is_under_way and not is_functional:
        return build()  # the model around it gets its values as a whole
    before, _BUILDING.is_under_way = _BUILDING.is_under_way, True
    try:
        with entered(layout_map):
            done = build()
    finally:
        _BUILDING.is_under_way = before
    _claim_unbuilt_layers(root, layout_map)
    _give_values(root, layout_map)
    return done


def _claim_unbuilt_layers(root: Any, layout_map: LayoutMap) -> None:
    """Claims layers that the first build did not reach: a later call makes their weights."""
    for layer in root._flatten_layers(include_self=False):
        if not layer.built and not is_claimed(layer):
            claim(layer, root, layout_map)


def _give_values(root: Any, layout_map: LayoutMap) -> None:
    """Gives the weights of a model their values, or has Keras do so when tracing is over."""
    if not being_traced():
        waiting = list(waiting_variables())
        waiting_variables()[:] = [v for v in waiting if not isinstance(v, _WaitingModel)]
        for inner in waiting:
            if isinstance(inner, _WaitingModel):
                inner._deferred_initialize()  # laid out by its own paths, before those of the outer model
        materialize_model(root, layout_map)
        return
    if not in_stateless_scope():
        raise VariableError(
            f"the Keras model {root.name!r} makes its weights while jax traces a function (jit, grad, vmap…), "
            f"where they cannot get values; build it before, by calling it on data or on a keras.Input"
        )
    check_layouts(root, layout_map)
    waiting_variables().append(_WaitingModel(root, layout_map))


class _WaitingModel:
    """Represents a model in Keras' list of variables that get their values when tracing is over."""

    def __init__(self, root: Any, layout_map: LayoutMap) -> None:
        self.root, self.layout_map = root, layout_map
        self._value = None

    def _deferred_initialize(self) -> None:
        try:
            materialize_model(self.root, self.layout_map)
        except BaseException:
            # Keras does not empty its list after an error, so the next model would find this one again.
            waiting_variables()[:] = [
                v for v in waiting_variables() if v is not self and v._value is None
            ]
            raise
