"""InitialValue: the shape and dtype of a variable, and the array or initializer that its value comes from."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.errors import VariableError, VariableTypeError
from reshard.variables.distribute import distribute_tensor
from reshard.variables.lazy.compute_in_steps import Compiled, compute_in_steps, values_unknown

if TYPE_CHECKING:
    import jax
    import numpy as np
    from jax.sharding import NamedSharding


_MOST_ELEMENTS = (1 << 63) - 1


class InitialValue(Struct, frozen=True):
    """Exactly one of two is set: ``call`` computes the whole value, ``array`` is the value."""

    shape: tuple[int, ...]
    dtype: Any
    call: Callable[[], Any] | None = None
    array: Any = None

    def whole(self, path: str) -> jax.Array:
        """The value on the default device, computed eagerly."""
        import jax.numpy as jnp

        if self.call is None and _is_jax(self.array):
            return value_in_dtype(jnp.array(self.array), self.dtype)
        if self.call is None:
            return jnp.array(_copied(self.array, self.dtype, path))
        with _naming(path):
            made = self.call()
        self._check(made, path)
        return jnp.asarray(made)

    def sharded(self, sharding: NamedSharding, path: str, compiled: Compiled) -> jax.Array:
        """The same value in shards; each device computes or receives only its own."""
        import jax

        if self.call is not None:
            with _naming(path), values_unknown():
                made = jax.eval_shape(self.call)
            self._check(made, path)
            return compute_in_steps(self.call, lambda _: [sharding], compiled)[1][0]
        if _is_jax(self.array):
            placed = distribute_tensor(value_in_dtype(self.array, self.dtype), sharding)
            return placed.copy() if placed is self.array else placed
        return jax.make_array_from_callback(
            self.shape, sharding, lambda index: _copied(self.array[index], self.dtype, path)
        )

    def _check(self, made: Any, path: str) -> None:
        shape, dtype = getattr(made, "shape", None), getattr(made, "dtype", None)
        if (shape, dtype) != (self.shape, self.dtype):
            has = "no array" if shape is None else f"shape {list(shape)} and dtype {dtype}"
            raise VariableError(
                f"the initializer of {path!r} must return shape {list(self.shape)} and dtype {self.dtype}, "
                f"but returned {has}; correct it, or the shape and dtype of the variable"
            )


def initial_value(source: Any, shape: Any, dtype: Any, key: Any) -> InitialValue:
    """Checks the arguments of a variable; ``source`` is an initializer or an array."""
    if not callable(source):
        return _from_array(source, shape, dtype, key)
    if shape is None:
        raise VariableTypeError(
            "a variable with an initializer needs its shape too, such as Variable(jnp.zeros, (8, 4))"
        )
    sizes, kind = _sizes(shape), _dtype(dtype, float)
    if key is not None and not hasattr(key, "dtype"):
        raise VariableTypeError(
            f"a variable's key must be a jax random key such as jax.random.key(0), not {key!r:.80}"
        )
    arguments = (sizes, kind) if key is None else (key, sizes, kind)
    return InitialValue(sizes, kind, call=lambda: source(*arguments))


def _from_array(source: Any, shape: Any, dtype: Any, key: Any) -> InitialValue:
    if key is not None:
        raise VariableTypeError(
            "a variable with a given value takes no key; leave the key out, or give an initializer"
        )
    array = source if _is_sliceable(source) else _numbers(source)
    if array is None or not is_numeric(array.dtype):
        raise VariableTypeError(
            f"a variable's value must be numbers or an initializer, not {type(source).__name__}: {source!r:.80}"
        )
    if shape is not None and _sizes(shape) != tuple(array.shape):
        raise VariableError(
            f"a variable of shape {list(_sizes(shape))} was given a value of shape {list(array.shape)}"
        )
    return InitialValue(tuple(array.shape), _dtype(dtype, array.dtype), array=array)


def _is_jax(array: Any) -> bool:
    import jax

    return isinstance(array, jax.Array)


def _copied(part: Any, dtype: Any, path: str) -> np.ndarray[Any, Any]:
    """The part in ``dtype``; VariableError for whole numbers that do not fit into it."""
    import jax.numpy as jnp
    import numpy as np

    given = np.asarray(part)
    made = given.astype(dtype)
    whole = all(jnp.issubdtype(kind, jnp.integer) for kind in (given.dtype, dtype))
    if whole and not np.array_equal(made, given):
        raise VariableError(
            f"the value of {path!r} has numbers between {given.min()} and {given.max()}, which {dtype} cannot "
            f"hold; give a wider dtype (64 bits need jax_enable_x64)"
        )
    return made


def _numbers(source: Any) -> Any:
    import numpy as np

    try:
        return np.asarray(source)
    except ValueError:  # a nested list whose rows differ in length
        return None


def is_numeric(dtype: Any) -> bool:
    """True if jax has arrays of the dtype: numbers, bool, and random keys."""
    import jax
    import jax.numpy as jnp

    kinds = (jnp.number, jnp.bool_, jax.dtypes.extended)
    return any(jnp.issubdtype(dtype, kind) for kind in kinds)


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Adds the variable's path to any exception that its initializer raises."""
    try:
        yield
    except Exception as error:
        error.add_note(f"raised by the initializer of the variable {path!r}")
        raise


def value_in_dtype(array: jax.Array, dtype: Any) -> jax.Array:
    """The array in ``dtype``; VariableTypeError between random keys and numbers."""
    import jax
    import jax.numpy as jnp

    if array.dtype == dtype:
        return array
    if any(jnp.issubdtype(kind, jax.dtypes.extended) for kind in (array.dtype, dtype)):
        raise VariableTypeError(f"an array of dtype {array.dtype} cannot become one of {dtype}")
    return array.astype(dtype)


def _is_sliceable(source: Any) -> bool:
    """True for an array, and for a dataset in a file whose parts are read when a device needs them."""
    return all(hasattr(source, name) for name in ("shape", "dtype", "__getitem__"))


def _sizes(shape: Any) -> tuple[int, ...]:
    try:
        sizes = tuple(map(operator.index, shape if isinstance(shape, Sequence) else (shape,)))
    except TypeError:
        sizes = (-1,)
    if any(size < 0 for size in sizes):
        raise VariableTypeError(
            f"a variable's shape must be whole numbers of at least 0, not {shape!r}"
        )
    if math.prod(sizes) > _MOST_ELEMENTS:
        raise VariableTypeError(
            f"a variable may have at most {_MOST_ELEMENTS} elements, but its shape is {shape!r}"
        )
    return sizes


def _dtype(asked: Any, default: Any) -> Any:
    import jax
    import jax.numpy as jnp
    import numpy as np

    found = default if asked is None else asked
    try:
        if jnp.issubdtype(found, jax.dtypes.extended):
            return found
        wide = np.dtype(found)
    except TypeError:
        raise VariableTypeError(f"{asked!r} is not a dtype") from None
    if not is_numeric(wide):
        raise VariableTypeError(f"{wide} is not a dtype of numbers, which a variable needs")
    kept = np.dtype(jax.dtypes.canonicalize_dtype(wide))
    if asked is not None and kept != wide:
        raise VariableTypeError(
            f"jax would silently narrow the dtype {wide} to {kept}; give {kept}, or enable jax_enable_x64"
        )
    return kept
