"""A ShardedVariable in jax: a pytree whose children are its shards, and which cannot be changed while jax traces.

Under ``jit`` nothing is computed while the function is traced: a change would put tracers into the
variable once, and later calls would not repeat it. ``grad`` and ``vmap`` compute at once, but they would neither
differentiate nor map the change.
"""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import Any

from msgspec.structs import replace

from reshard.errors import VariableError
from reshard.geometry.dtypes import narrowed_by_jax


def refuse_tracing(name: str, method: str, *arrays: Any) -> None:
    """Raises VariableError if jax traces the caller, or ``arrays`` contain a tracer."""
    from jax.tree_util import tree_leaves

    if any(map(is_traced, tree_leaves(arrays))) or being_traced():
        raise VariableError(
            f"{method} would change {name!r} while jax traces a function (jit, grad, vmap, scan…); "
            f"return the new values from the function and assign them outside it"
        )


def is_traced(array: Any) -> bool:
    """True for a tracer of jax, which has no values."""
    import jax

    return isinstance(array, jax.core.Tracer)


def being_traced() -> bool:
    """True while jax traces the caller."""
    from jax.core import eval_context
    from jax.extend.core import get_opaque_trace_state

    with eval_context():
        eager = get_opaque_trace_state(convention="flax")
    found: bool = get_opaque_trace_state(convention="flax") != eager
    return found


_registering = Lock()


class Shape(tuple[int, ...]):
    """A tuple of sizes, with ``as_list()`` as in ``tf.TensorShape``.

    >>> Shape((3, 2)) == (3, 2), Shape((3, 2)).as_list()
    (True, [3, 2])
    """

    __slots__ = ()

    def as_list(self) -> list[int]:
        """The sizes as a list."""
        return list(self)


def register_pytree(kind: Any) -> None:
    """Registers ``kind`` as a pytree with jax, when its first instance is made."""
    if "_is_pytree" in vars(kind):
        return
    from jax.tree_util import register_pytree_with_keys

    with _registering:  # two threads may make the first instance
        if "_is_pytree" not in vars(kind):
            _register_shape()

            def unflatten(static: Any, shards: Any) -> Any:
                # Nothing is checked: jax may put tracers, shapes or None in place of the arrays.
                return kind._of(tuple(shards), static)

            register_pytree_with_keys(kind, _flatten_with_keys, unflatten, _flatten)
            kind._is_pytree = True


@cache
def _register_shape() -> None:
    """Registers Shape: its children are the sizes, as in any tuple, and unflattening makes a tuple."""
    from jax.tree_util import SequenceKey, register_pytree_with_keys

    def with_keys(shape: Shape) -> tuple[list[tuple[Any, Any]], None]:
        return [(SequenceKey(n), size) for n, size in enumerate(shape)], None

    register: Any = (
        register_pytree_with_keys  # its annotations demand that unflattening makes a Shape
    )
    register(Shape, with_keys, lambda _, sizes: tuple(sizes))


def _flatten(variable: Any) -> tuple[tuple[Any, ...], Any]:
    shards = tuple(variable._shards)
    dtype = getattr(shards[0], "dtype", None)
    wide = "" if dtype is None or narrowed_by_jax(dtype) is None else str(dtype)
    return shards, replace(variable._static, numpy_dtype=wide)


def _flatten_with_keys(variable: Any) -> tuple[list[tuple[Any, Any]], Any]:
    from jax.tree_util import DictKey  # SequenceKey has no ``key``, which jax's messages need

    shards, static = _flatten(variable)
    return [(DictKey(n), shard) for n, shard in enumerate(shards)], static
