"""Everything of this project that rests on private parts of Keras 3: hooks, fields of variables, names.

In a layout map's scope two methods of Keras' classes are replaced: ``Layer.add_weight`` makes weights
that wait for their layout, ``Model.__init__`` claims models. They are put back when the last scope of the
last thread ends. What stays is on the claimed models alone: their ``build``, ``build_from_config`` and
``_maybe_build`` see that weights made later, outside of the scope too, wait and come alive in the same way.

Weights that are made while jax traces, as in the first ``fit``, cannot have values yet. Keras has a list
of such variables and gives them values when tracing is over; a model waits in that list as a whole.

Written for Keras 3.15.1 on jax. ``keras_scope`` refuses a Keras whose private parts are others.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.errors import VariableError
from reshard.layout.scope import current_layout_map, layout_map_scope

if TYPE_CHECKING:
    from reshard.layout.layout_map import LayoutMap

TESTED_WITH = "3.15.1"

CACHED_BY_KERAS = frozenset(
    {
        "_functional", "_inbound_nodes", "_inputs", "_inputs_struct", "_layers", "_losses", "_losses_override",
        "_metrics", "_nodes", "_nodes_by_depth", "_non_trainable_variables", "_operations",
        "_operations_by_depth", "_outbound_nodes", "_outputs", "_outputs_struct", "_seed_generators",
        "_tracker", "_trainable_variables",
    }
)  # fmt: skip
"""Attributes in which Keras 3 lists once more what hangs on other attributes, or how layers are wired."""

_WAITING = "uninitialized_variables"
"""Keras' name for its list, one per thread, of variables that have no value yet."""


def keras_on_jax() -> Any:
    """The ``keras`` module where the program has imported it and its backend is jax, else None."""
    keras = sys.modules.get("keras")
    backend = getattr(getattr(keras, "backend", None), "backend", None)
    return keras if backend is not None and backend() == "jax" else None


class WaitingInitializer(Struct, frozen=True):
    """Stands where a lazy Keras variable has its initializer, and refuses to be read as a value."""

    initializer: Callable[..., Any]
    layout_map: LayoutMap
    path: str

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        """Keras asks for a value: while it infers shapes any will do, else there is none."""
        if _in_stateless_scope() and _being_traced():
            return self.initializer(shape, dtype=dtype)
        raise VariableError(
            f"the Keras variable {self.path!r} (shape {list(shape)}, {dtype}) was made in a layout map's "
            f"scope and has no value yet; build the model that holds it first, by calling it on data or on a "
            f"keras.Input, or call reshard.variables.materialize on what holds it"
        )


def lazy_initializer(variable: Any) -> WaitingInitializer | None:
    """What a Keras variable waits with; None where it is not lazy."""
    found = variable._initializer
    return found if isinstance(found, WaitingInitializer) else None


def value_of(variable: Any) -> Any:
    """The value of a Keras variable, also of a lazy one that was assigned; None where it has none."""
    return variable._value


def initialized_by(variable: Any, initializer: Callable[..., Any]) -> Any:
    """The value that Keras would give the variable."""
    return variable._convert_to_tensor(initializer(tuple(variable.shape), dtype=variable._dtype))


def dtype_of(variable: Any) -> str:
    """The dtype of a Keras variable, whatever precision is in force for computing."""
    dtype: str = variable._dtype
    return dtype


def has_layout(variable: Any) -> bool:
    """Whether the variable has its place: from a layout map, or from ``keras.distribution``."""
    return variable._layout is not None


def hold(variable: Any, value: Any) -> None:
    """Gives a Keras variable its value, whose sharding every later value has too."""
    variable._layout = value.sharding
    variable._value = value
    variable._initializer = None


def is_made_of_layers(model: Any) -> bool:
    """Whether layers have names in it instead of attributes: a Functional or Sequential model."""
    keras = keras_on_jax()
    return isinstance(model, keras.Sequential) or hasattr(model, "_operations_by_depth")


@contextmanager
def keras_scope() -> Iterator[None]:
    """Keras models made inside belong to the current layout map; does nothing where Keras is not in use."""
    keras = keras_on_jax()
    if keras is None:
        yield
        return
    _check_parts(keras)
    _PATCHES.enter(keras)
    try:
        yield
    finally:
        _PATCHES.leave(keras)


class _Patches:
    """The two methods of Keras that are others while any thread is in a scope."""

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
"""One for the process, as Keras' classes are; whether a thread is in a scope is asked of the thread."""


class _Building(threading.local):
    """Whether the first build of a claimed model is under way: what it builds inside comes alive with it."""

    is_under_way = False


_BUILDING = _Building()


def _waiting_weight(original: Any) -> Any:
    @wraps(original)
    def add_weight(layer: Any, *args: Any, **kwargs: Any) -> Any:
        layout_map = current_layout_map()
        if layout_map is None:
            return original(layer, *args, **kwargs)
        before = list(_waiting())
        with keras_on_jax().StatelessScope(initialize_variables=False):
            variable = original(layer, *args, **kwargs)
        _waiting()[:] = before
        if variable._value is None:
            variable._initializer = WaitingInitializer(
                variable._initializer, layout_map, variable.path
            )
        return variable

    return add_weight


def _claiming(original: Any) -> Any:
    @wraps(original)
    def __init__(model: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        layout_map = current_layout_map()
        if layout_map is not None and not is_claimed(model):
            claim(model, model, layout_map)
        original(model, *args, **kwargs)

    return __init__


def is_claimed(layer: Any) -> bool:
    """Whether the layer was made in a scope as a model, or as a part that such a model had not built."""
    return "_maybe_build" in vars(layer)


def claim(layer: Any, root: Any, layout_map: LayoutMap) -> None:
    """Sees that whatever ``layer`` builds from now on comes alive by its path below the model ``root``."""

    def in_shards(method: Any, is_done: Callable[[], bool]) -> Any:
        @wraps(method)
        def build(*args: Any, **kwargs: Any) -> Any:
            if is_done():
                return method(*args, **kwargs)
            return _in_first_build(layer, root, layout_map, lambda: method(*args, **kwargs))

        return build

    # Not by setattr, which makes Keras look for layers in what is set.
    vars(layer).update(
        build=in_shards(layer.build, lambda: False),
        build_from_config=in_shards(layer.build_from_config, lambda: False),
        _maybe_build=in_shards(layer._maybe_build, lambda: layer.built),
    )


def _in_first_build(layer: Any, root: Any, layout_map: LayoutMap, build: Callable[[], Any]) -> Any:
    is_functional = is_made_of_layers(layer) and not isinstance(layer, keras_on_jax().Sequential)
    if _BUILDING.is_under_way and not is_functional:
        return build()  # the model around it comes alive as a whole
    before, _BUILDING.is_under_way = _BUILDING.is_under_way, True
    try:
        with layout_map_scope(layout_map):
            done = build()
    finally:
        _BUILDING.is_under_way = before
    _claim_what_is_left(root, layout_map)
    _come_alive(root, layout_map)
    return done


def _claim_what_is_left(root: Any, layout_map: LayoutMap) -> None:
    """Layers that the first build did not reach make their weights in a later call."""
    for layer in root._flatten_layers(include_self=False):
        if not layer.built and not is_claimed(layer):
            claim(layer, root, layout_map)


def _come_alive(root: Any, layout_map: LayoutMap) -> None:
    """Gives the weights of a model their values, or has Keras do so once tracing is over."""
    if not _being_traced():
        waiting = list(_waiting())
        _waiting()[:] = [v for v in waiting if not isinstance(v, _WaitingModel)]
        for inner in waiting:
            if isinstance(
                inner, _WaitingModel
            ):  # by paths of its own, before those from outside count
                inner._deferred_initialize()
        _above("lazy.materialize").awaken(root, layout_map)
        return
    if not _in_stateless_scope():
        raise VariableError(
            f"the Keras model {root.name!r} makes its weights while jax traces a function (jit, grad, vmap…), "
            f"where they cannot get values; build it before, by calling it on data or on a keras.Input"
        )
    _above("lazy.materialize").check_layouts(root, layout_map)
    _waiting().append(_WaitingModel(root, layout_map))


class _WaitingModel:
    """Stands for a model in Keras' list of variables that get their values when tracing is over."""

    def __init__(self, root: Any, layout_map: LayoutMap) -> None:
        self.root, self.layout_map = root, layout_map
        self._value = None

    def _deferred_initialize(self) -> None:
        try:
            _above("lazy.materialize").awaken(self.root, self.layout_map)
        except BaseException:
            # Keras does not empty its list after an error: the next model would meet this one again.
            _waiting()[:] = [v for v in _waiting() if v is not self and v._value is None]
            raise


def _above(module: str) -> Any:
    """Where values are made, a part above this one: a scope is entered here, models come alive there."""
    return import_module(f"reshard.variables.{module}")


def _being_traced() -> bool:
    traced: bool = _above("sharded.tracing").being_traced()
    return traced


def _in_stateless_scope() -> bool:
    scope = import_module("keras.src.backend.common.stateless_scope")
    inside: bool = scope.in_stateless_scope()
    return inside


def _waiting() -> list[Any]:
    state: Any = import_module("keras.src.backend.common.global_state")
    found: list[Any] = state.get_global_attribute(_WAITING, [], set_to_default=True)
    return found


@cache
def _check_parts(keras: Any) -> None:
    """Refuses a Keras that lacks what this file rests on."""
    try:
        problem = _missing(keras)
    except Exception as error:  # noqa: BLE001  whatever another Keras raises, its parts are others
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise VariableError(
            f"a layout map's scope rests on private parts of Keras {TESTED_WITH}, and Keras "
            f"{getattr(keras, '__version__', '?')} differs: {problem}; install keras=={TESTED_WITH}, or make Keras "
            f"models outside of the scope and place them by keras.distribution and LayoutMap.to_keras()"
        )


def _missing(keras: Any) -> str:
    """What is not as this file needs it, found by looking and by making one variable; empty for nothing."""
    expected = {
        "Layer._maybe_build": ["self", "call_spec"],
        "Layer._flatten_layers": ["self", "include_self", "recursive"],
        "StatelessScope.__init__": ["self", "state_mapping", "collect_losses", "initialize_variables"],
        "Variable._deferred_initialize": ["self"],
    }  # fmt: skip
    for name, parameters in expected.items():
        holder, method = name.split(".")
        found = list(inspect.signature(getattr(getattr(keras, holder), method)).parameters)
        if found != parameters:
            return f"{name} takes {found}, not {parameters}"
    before = list(_waiting())
    with keras.StatelessScope(initialize_variables=False):
        variable = keras.Variable(keras.initializers.Zeros(), shape=(1,))
    waits = any(other is variable for other in _waiting())
    _waiting()[:] = before
    fields = ("_value", "_initializer", "_layout", "_dtype")
    lacking = [field for field in fields if not hasattr(variable, field)]
    if lacking or variable._value is not None or not callable(variable._initializer) or not waits:
        return (
            f"a variable made in a StatelessScope does not wait as it did {lacking or ''}".strip()
        )
    return ""
