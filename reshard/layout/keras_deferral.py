"""Keras variables made in a scope wait for their layout.

Keras has a place for this: in a ``keras.StatelessScope`` a variable that is given an initializer
keeps it and gets its value later. Ours leaves variables that are alive alone: they are read and
assigned as outside. Keras is touched only where the program has imported it, with the jax backend.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Struct

from reshard.errors import VariableError

if TYPE_CHECKING:
    from reshard.layout.layout_map import LayoutMap

_WAITING = "uninitialized_variables"
"""Keras' name for its list, one per thread, of variables that have no value yet."""

_REFUSED_BY_KERAS = "You are attempting to create a variable while in a stateless scope"


class WaitingInitializer(Struct, frozen=True):
    """Stands where a lazy Keras variable has its initializer, and refuses to be read as a value."""

    initializer: Callable[..., Any]
    layout_map: LayoutMap
    path: str

    def __call__(self, shape: Any, dtype: Any = None) -> NoReturn:
        """Keras asks for a value of the variable."""
        raise VariableError(
            f"the Keras variable {self.path!r} (shape {list(shape)}, {dtype}) was made in a layout map's "
            f"scope and has no value yet; call reshard.variables.materialize(model) before it is read"
        )


def keras_on_jax() -> Any:
    """The ``keras`` module where the program has imported it and its backend is jax, else None."""
    keras = sys.modules.get("keras")
    backend = getattr(getattr(keras, "backend", None), "backend", None)
    return keras if backend is not None and backend() == "jax" else None


@contextmanager
def keras_deferral(layout_map: LayoutMap) -> Iterator[None]:
    """Keras variables made inside are lazy; does nothing where Keras is not in use."""
    keras = keras_on_jax()
    if keras is None:
        yield
        return
    before = list(_waiting())
    try:
        with _deferring_scope(keras):
            yield
    except ValueError as error:
        if str(error).startswith(_REFUSED_BY_KERAS):
            raise VariableError(
                "a Keras variable that is given its value, such as keras.Variable(0), and so every optimizer, "
                "cannot be made in a layout map's scope: only one with an initializer and a shape can wait, "
                "such as keras.Variable('zeros', shape=()); make optimizers and compile outside of the scope"
            ) from error
        raise
    finally:
        _let_wait(before, layout_map)


def _let_wait(before: list[Any], layout_map: LayoutMap) -> None:
    """Takes what was made since off Keras' list, and lets reading it fail until it is materialised."""
    known = set(map(id, before))
    for variable in _waiting():
        if id(variable) not in known and variable._value is None:
            variable._initializer = WaitingInitializer(
                variable._initializer, layout_map, variable.path
            )
    _waiting()[:] = before


def _waiting() -> list[Any]:
    state: Any = import_module("keras.src.backend.common.global_state")
    found: list[Any] = state.get_global_attribute(_WAITING, [], set_to_default=True)
    return found


def _deferring_scope(keras: Any) -> Any:
    class DeferringScope(keras.StatelessScope):  # type: ignore[misc]
        def add_update(self, update: tuple[Any, Any]) -> None:
            variable, value = update
            if variable._value is None:
                raise VariableError(
                    f"the Keras variable {variable.path!r} is lazy and cannot be assigned; call "
                    f"reshard.variables.materialize(model) first"
                )
            variable._direct_assign(value)

    return DeferringScope(initialize_variables=False)
