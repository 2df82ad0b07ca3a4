"""ShardedVariable and its Shape as jax pytrees: the children of a variable are its shards."""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import Any

from msgspec.structs import replace

from reshard.variables.sharded.shards import narrowed_by_jax

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
            register_pytree_with_keys(kind, _flatten_with_keys, _unflatten_of(kind), _flatten)
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


def _unflatten_of(kind: Any) -> Any:
    # Nothing is checked: jax may put tracers, shapes or None in place of the arrays.
    return lambda static, shards: kind._of(tuple(shards), static)
