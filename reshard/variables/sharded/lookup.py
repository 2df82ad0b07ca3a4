"""Looks up rows of a table by their ids, eagerly and under tracing.

Eager look-ups read only the shards that have the rows. Traced ids are looked up in every shard, and each row is taken
from the shard that has it, so the shards are never joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reshard.errors import VariableError, VariableTypeError
from reshard.variables.sharded.in_jax import is_traced
from reshard.variables.sharded.reading import gathered, on_one_device, read
from reshard.variables.sharded.shard_rows import ShardRows, check_strategy
from reshard.variables.sharded.shards import array_module, as_jax_array
from reshard.variables.sharded.values import checked_index_type, checked_indices

if TYPE_CHECKING:
    import jax

    from reshard.variables.sharded.shards import Array


def rows_of(
    shards: Sequence[Array], axis: int, rows: ShardRows, ids: Any, name: str, method: str
) -> Array:
    """The rows at ``ids`` of dimension 0: an array of shape ``ids.shape + shape[1:]``.

    Raises VariableIndexError for ids out of range; traced ids out of range give the fill value of ``jnp.take``.
    """
    ids = checked_index_type(ids, name, method)
    on_jax = [as_jax_array(shard, name) for shard in shards] if is_traced(ids) else None
    if axis != 0:
        return _beside(on_jax or shards, axis, rows, ids, name, method)
    if on_jax is not None:
        return _selected(on_jax, rows, ids)
    found = checked_indices(ids, rows.total, name, method)
    every = [slice(None)] * shards[0].ndim
    flat = read(shards, 0, rows.parts_of(found.ravel()), every)
    return flat.reshape(*found.shape, *shards[0].shape[1:])


def check_same_strategy(given: str | None, rows: ShardRows, name: str) -> None:
    """Raises VariableError for a strategy other than the one that split the table."""
    if given is None:
        return
    check_strategy(given)
    if given != rows.strategy:
        raise VariableError(
            f"{name!r} is split by {rows.strategy!r}; a look-up by {given!r} would find other rows. "
            f"Leave partition_strategy out, or split the table by {given!r}"
        )


def check_norm(max_norm: Any, dtype: Any, name: str) -> None:
    """Raises an error unless the norm is a number of at least 0 and the table is floating point."""
    import jax.numpy as jnp

    if not jnp.issubdtype(dtype, jnp.floating):
        raise VariableTypeError(
            f"max_norm scales rows of floating point, but {name!r} has dtype {dtype}; leave it out"
        )
    plain = isinstance(max_norm, int | float)
    if not plain and getattr(max_norm, "shape", None) != ():
        raise VariableTypeError(f"max_norm for {name!r} must be a number, not {max_norm!r}")
    if plain and not max_norm >= 0:
        raise VariableError(f"max_norm for {name!r} must be at least 0, not {max_norm}")


def clipped(found: Any, max_norm: Any, id_rank: int, name: str) -> Array:
    """The rows; rows with an L2 norm above ``max_norm`` are scaled down to it."""
    import jax

    if isinstance(max_norm, jax.Array):
        found = as_jax_array(found, name)
    xp = array_module([found])
    axes = tuple(range(id_rank, found.ndim))
    norm = xp.sqrt(xp.sum(found * found, axis=axes, keepdims=True))
    scale = max_norm / xp.where(norm > 0, norm, norm.dtype.type(1))
    return xp.where(norm > max_norm, found * scale, found)  # type: ignore[no-any-return]  # numpy or jax


def _selected(shards: Sequence[jax.Array], rows: ShardRows, ids: jax.Array) -> jax.Array:
    import jax.numpy as jnp

    ids = ids.astype(int)  # narrow types are too small for every row's number
    owner, place = rows.owners(ids, jnp)
    owner = jnp.where((ids >= 0) & (ids < rows.total), owner, -1)
    # A look-up outside of a table of one row gives jnp.take's fill value.
    found = jnp.take(
        jnp.zeros((1, *shards[0].shape[1:]), shards[0].dtype), ids * 0 + 1, axis=0, mode="fill"
    )
    for number, shard in enumerate(on_one_device(shards)):
        if shard.shape[0]:
            here = (owner == number).reshape(*ids.shape, *[1] * (shard.ndim - 1))
            found = jnp.where(here, jnp.take(shard, place, axis=0, mode="clip"), found)
    return found


def _beside(
    shards: Sequence[Array], axis: int, rows: ShardRows, ids: Any, name: str, method: str
) -> Array:
    """The rows of a table whose shards are columns: the same rows of each shard, joined."""
    import jax.numpy as jnp
    import numpy as np

    if not is_traced(ids):
        ids = checked_indices(ids, shards[0].shape[0], name, method)
    if array_module(shards) is np:
        pieces: list[Any] = [np.take(shard, ids, axis=0) for shard in shards]
    else:
        pieces = [jnp.take(shard, ids, axis=0, mode="fill") for shard in shards]
    return gathered(pieces, axis - 1 + ids.ndim, rows)
