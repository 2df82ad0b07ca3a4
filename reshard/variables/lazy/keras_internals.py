"""Every private part of Keras 3 that this package uses: fields, names of attributes, its list of waiting variables.

Written for Keras 3.15.1 on jax. ``check_parts`` refuses a Keras whose private parts differ.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.errors import VariableError
from reshard.variables.sharded.in_jax import being_traced

if TYPE_CHECKING:
    from reshard.layout.layout_map import LayoutMap
    from reshard.layout.tensor_layout import TensorLayout

TESTED_WITH = "3.15.1"

CACHED_BY_KERAS = frozenset(
    {
        "_functional", "_inbound_nodes", "_inputs", "_inputs_struct", "_layers", "_losses", "_losses_override",
        "_metrics", "_nodes", "_nodes_by_depth", "_non_trainable_variables", "_operations",
        "_operations_by_depth", "_outbound_nodes", "_outputs", "_outputs_struct", "_seed_generators",
        "_tracker", "_trainable_variables",
    }
)  # fmt: skip
"""Attributes that repeat objects of other attributes, or say how layers are wired."""

_WAITING = "uninitialized_variables"
"""Keras' name for its list of variables without values; each thread has one."""


def keras_on_jax() -> Any:
    """The ``keras`` module if the program has imported it and its backend is jax, else None."""
    keras = sys.modules.get("keras")
    backend = getattr(getattr(keras, "backend", None), "backend", None)
    return keras if backend is not None and backend() == "jax" else None


class WaitingInitializer(Struct, frozen=True):
    """Replaces the initializer of a lazy Keras variable, and raises an error if Keras asks it for a value."""

    initializer: Callable[..., Any]
    layout_map: LayoutMap
    path: str

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        """Gives a value while Keras infers shapes, when any value will do; VariableError at any other time."""
        if in_stateless_scope() and being_traced():
            return self.initializer(shape, dtype=dtype)
        raise VariableError(
            f"the Keras variable {self.path!r} (shape {list(shape)}, {dtype}) was made in a layout map's "
            f"scope and has no value yet; build the model that contains it first, by calling it on data or on a "
            f"keras.Input, or call reshard.variables.materialize on the object that contains it"
        )


def lazy_initializer(variable: Any) -> WaitingInitializer | None:
    """The WaitingInitializer of a lazy Keras variable; None for other variables."""
    found = variable._initializer
    return found if isinstance(found, WaitingInitializer) else None


def value_of(variable: Any) -> Any:
    """The value of a Keras variable, also of a lazy one that was assigned a value; None without a value."""
    return variable._value


def initialized_by(variable: Any, initializer: Callable[..., Any]) -> Any:
    """The value that Keras would give the variable."""
    return variable._convert_to_tensor(initializer(tuple(variable.shape), dtype=variable._dtype))


def variable_dtype(variable: Any) -> str:
    """The dtype of a Keras variable, independent of the current compute dtype."""
    dtype: str = variable._dtype
    return dtype


def has_layout(variable: Any) -> bool:
    """True if the variable has a layout, from a layout map or from ``keras.distribution``."""
    return variable._layout is not None


def hold(variable: Any, value: Any, layout: TensorLayout) -> None:
    """Sets the value of a Keras variable, and ``variable.layout``; later values get the same sharding."""
    variable._layout = value.sharding
    variable.layout = (
        layout  # Keras 3 has no such attribute; the variables of Keras' dtensor had it
    )
    variable._value = value
    variable._initializer = None


def is_made_of_layers(model: Any) -> bool:
    """True for a Functional or Sequential model, whose layers have names instead of attributes."""
    keras = keras_on_jax()
    return isinstance(model, keras.Sequential) or hasattr(model, "_operations_by_depth")


def is_claimed(layer: Any) -> bool:
    """True if the layer is a model made in a scope, or a part that such a model had not built."""
    return "_maybe_build" in vars(layer)


def in_stateless_scope() -> bool:
    """True if Keras is in a StatelessScope, as while it traces or infers shapes."""
    scope = import_module("keras.src.backend.common.stateless_scope")
    inside: bool = scope.in_stateless_scope()
    return inside


def waiting_variables() -> list[Any]:
    """Keras' own list of this thread's variables without values; changes to it take effect."""
    state: Any = import_module("keras.src.backend.common.global_state")
    found: list[Any] = state.get_global_attribute(_WAITING, [], set_to_default=True)
    return found


@cache
def check_parts(keras: Any) -> None:
    """Raises VariableError for a Keras whose private parts differ from those used here."""
    try:
        problem = _missing(keras)
    except Exception as error:  # noqa: BLE001  any exception means that the parts differ
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise VariableError(
            f"a layout map's scope depends on private parts of Keras {TESTED_WITH}, and Keras "
            f"{getattr(keras, '__version__', '?')} differs: {problem}; install keras=={TESTED_WITH}, or make Keras "
            f"models outside of the scope and place them by keras.distribution and LayoutMap.to_keras()"
        )


def _missing(keras: Any) -> str:
    """The first private part that differs, found by looking and by making one variable; empty if none does."""
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
    before = list(waiting_variables())
    with keras.StatelessScope(initialize_variables=False):
        variable = keras.Variable(keras.initializers.Zeros(), shape=(1,))
    waits = any(other is variable for other in waiting_variables())
    waiting_variables()[:] = before
    fields = ("_value", "_initializer", "_layout", "_dtype")
    lacking = [field for field in fields if not hasattr(variable, field)]
    if lacking or variable._value is not None or not callable(variable._initializer) or not waits:
        return (
            f"a variable made in a StatelessScope does not wait as it did {lacking or ''}".strip()
        )
    return ""
