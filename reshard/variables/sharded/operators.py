"""Operators of a variable in shards: the shards are joined into one array of jax or numpy, which computes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from reshard.errors import VariableTypeError
from reshard.geometry.dtypes import narrowed_by_jax
from reshard.variables.sharded.reading import on_one_device

if TYPE_CHECKING:
    from reshard.variables.sharded.shards import Array


class ArrayOperators:
    """The operators of an array; each returns an array.

    ``==`` compares elements, so a variable cannot be hashed. ``variable += x`` rebinds the name to an
    array; ``assign_add`` changes the variable.
    """

    name: Any
    dtype: Any
    _whole: Any

    __array_priority__ = 100  # numpy arrays then call the operators of this class

    __hash__ = None  # type: ignore[assignment]  # as numpy arrays have none

    def __neg__(self) -> Array:
        return _one(operator.neg, self)

    def __pos__(self) -> Array:
        return _one(operator.pos, self)

    def __invert__(self) -> Array:
        return _one(operator.invert, self)

    def __abs__(self) -> Array:
        return _one(operator.abs, self)

    def __eq__(self, other: object) -> Array:  # type: ignore[override]  # element by element, as numpy does
        return _both(operator.eq, self, other)

    def __ne__(self, other: object) -> Array:  # type: ignore[override]  # element by element, as numpy does
        return _both(operator.ne, self, other)

    def __lt__(self, other: Any) -> Array:
        return _both(operator.lt, self, other)

    def __le__(self, other: Any) -> Array:
        return _both(operator.le, self, other)

    def __gt__(self, other: Any) -> Array:
        return _both(operator.gt, self, other)

    def __ge__(self, other: Any) -> Array:
        return _both(operator.ge, self, other)

    def __add__(self, other: Any) -> Array:
        return _both(operator.add, self, other)

    def __radd__(self, other: Any) -> Array:
        return _both(operator.add, other, self)

    def __sub__(self, other: Any) -> Array:
        return _both(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Array:
        return _both(operator.sub, other, self)

    def __mul__(self, other: Any) -> Array:
        return _both(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Array:
        return _both(operator.mul, other, self)

    def __truediv__(self, other: Any) -> Array:
        return _both(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Array:
        return _both(operator.truediv, other, self)

    def __floordiv__(self, other: Any) -> Array:
        return _both(operator.floordiv, self, other)

    def __rfloordiv__(self, other: Any) -> Array:
        return _both(operator.floordiv, other, self)

    def __mod__(self, other: Any) -> Array:
        return _both(operator.mod, self, other)

    def __rmod__(self, other: Any) -> Array:
        return _both(operator.mod, other, self)

    def __pow__(self, other: Any) -> Array:
        return _both(operator.pow, self, other)

    def __rpow__(self, other: Any) -> Array:
        return _both(operator.pow, other, self)

    def __matmul__(self, other: Any) -> Array:
        return _both(operator.matmul, self, other)

    def __rmatmul__(self, other: Any) -> Array:
        return _both(operator.matmul, other, self)

    def __and__(self, other: Any) -> Array:
        return _both(operator.and_, self, other)

    def __rand__(self, other: Any) -> Array:
        return _both(operator.and_, other, self)

    def __or__(self, other: Any) -> Array:
        return _both(operator.or_, self, other)

    def __ror__(self, other: Any) -> Array:
        return _both(operator.or_, other, self)

    def __xor__(self, other: Any) -> Array:
        return _both(operator.xor, self, other)

    def __rxor__(self, other: Any) -> Array:
        return _both(operator.xor, other, self)

    def __lshift__(self, other: Any) -> Array:
        return _both(operator.lshift, self, other)

    def __rlshift__(self, other: Any) -> Array:
        return _both(operator.lshift, other, self)

    def __rshift__(self, other: Any) -> Array:
        return _both(operator.rshift, self, other)

    def __rrshift__(self, other: Any) -> Array:
        return _both(operator.rshift, other, self)


def _both(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Array:
    import jax

    both = [_whole(left), _whole(right)]
    on_jax = [isinstance(value, jax.Array) for value in both]
    for value in (left, right) if any(on_jax) else ():
        _check_meets_jax(value)
    if all(on_jax) and isinstance(left, ArrayOperators) and isinstance(right, ArrayOperators):
        both = on_one_device(both)
    found: Array = operation(*both)
    return found


def _one(operation: Callable[[Any], Any], value: Any) -> Array:
    found: Array = operation(_whole(value))
    return found


def _whole(value: Any) -> Any:
    """A variable as one array, other variables of jax as jax arrays, anything else unchanged."""
    import jax.numpy as jnp

    if isinstance(value, ArrayOperators):
        return value._whole()
    return jnp.asarray(value) if hasattr(value, "__jax_array__") else value


def _check_meets_jax(value: Any) -> None:
    """Raises VariableTypeError for a numpy variable whose dtype jax would narrow."""
    held = narrowed_by_jax(value.dtype) if isinstance(value, ArrayOperators) else None
    if held is not None:
        raise VariableTypeError(
            f"{value.name!r} has dtype {value.dtype}, which jax would narrow to {held} to compute with a jax "
            f"array; set jax_enable_x64, or convert the jax array with numpy.asarray"
        )
