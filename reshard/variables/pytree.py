"""ShardedVariable as a jax pytree: its shards are the children, what they are called is fixed."""

from __future__ import annotations

from threading import Lock
from typing import Any

_registering = Lock()


def register_pytree(kind: Any) -> None:
    """Make jax see through instances of ``kind``; done once, when the first one is made."""
    if "_is_pytree" in vars(kind):
        return
    from jax.tree_util import register_pytree_with_keys

    with _registering:  # two threads may make the first one
        if "_is_pytree" not in vars(kind):
            register_pytree_with_keys(kind, _flatten_with_keys, _unflatten_of(kind), _flatten)
            kind._is_pytree = True


def _flatten(variable: Any) -> tuple[tuple[Any, ...], Any]:
    return tuple(variable._shards), variable._static


def _flatten_with_keys(variable: Any) -> tuple[list[tuple[Any, Any]], Any]:
    from jax.tree_util import DictKey  # SequenceKey has no ``key``, which jax's messages need

    shards, static = _flatten(variable)
    return [(DictKey(n), shard) for n, shard in enumerate(shards)], static


def _unflatten_of(kind: Any) -> Any:
    # jax puts tracers, shapes or None in place of arrays, so nothing is checked here.
    return lambda static, shards: kind._of(tuple(shards), static)
