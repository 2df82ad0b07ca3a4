"""ShardedVariable as a jax pytree: its shards are the children, what they are called is fixed."""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import Any

from msgspec.structs import replace

from reshard.variables.sharded.shards import narrowed_by_jax

_registering = Lock()


class Shape(tuple[int, ...]):
    """A tuple of sizes, with ``as_list()`` as ``tf.TensorShape`` has it.

    >>> Shape((3, 2)) == (3, 2), Shape((3, 2)).as_list()
    (True, [3, 2])
    """

    __slots__ = ()

    def as_list(self) -> list[int]:
        """The sizes as a list."""
        return list(self)


def register_pytree(kind: Any) -> None:
    """Make jax see through instances of ``kind``; done once, when the first one is made."""
    if "_is_pytree" in vars(kind):
        return
    from jax.tree_util import register_pytree_with_keys

    with _registering:  # two threads may make the first one
        if "_is_pytree" not in vars(kind):
            _register_shape()
            register_pytree_with_keys(kind, _flatten_with_keys, _unflatten_of(kind), _flatten)
            kind._is_pytree = True


@cache
def _register_shape() -> None:
    """jax sees the sizes in a shape, as in any tuple; what is made of them is a tuple."""
    from jax.tree_util import SequenceKey, register_pytree_with_keys

    def with_keys(shape: Shape) -> tuple[list[tuple[Any, Any]], None]:
        return [(SequenceKey(n), size) for n, size in enumerate(shape)], None

    register: Any = register_pytree_with_keys  # annotated as if a node came back as its own class
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
    # jax puts tracers, shapes or None in place of arrays, so nothing is checked here.
    return lambda static, shards: kind._of(tuple(shards), static)
