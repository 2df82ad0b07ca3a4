"""New shards from old ones and new values; the old ones are never touched.

Each function answers with every new shard, or raises before any is made to count. The caller then
swaps them all in at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from reshard.errors import VariableError, VariableTypeError
from reshard.variables.indexed_slices import IndexedSlices
from reshard.variables.shard_rows import Part, ShardRows, as_slice
from reshard.variables.values import check_rank_one, checked_indices, checked_values

if TYPE_CHECKING:
    import jax

Combine = Callable[[Any, Any], Any]
"""A whole old shard, and the values that came for it, to the new shard."""


def replaced(
    shards: Sequence[jax.Array], axis: int, rows: ShardRows, value: Any, combine: Combine
) -> tuple[jax.Array, ...]:
    """Every shard combined with its part of ``value``, an array of the variable's shape."""
    return tuple(
        combine(shard, _brought(value[_along(axis, as_slice(rows.of(number)))], shard))
        for number, shard in enumerate(shards)
    )


def scattered(
    shards: Sequence[jax.Array], axis: int, rows: ShardRows, delta: IndexedSlices, operation: str, name: str, method: str
) -> tuple[jax.Array, ...]:  # fmt: skip
    """Every shard with the rows that ``delta`` names changed by ``operation``.

    ``operation`` is one of add, sub, mul, div, max, min and update. A row that is named more than
    once takes each value in turn.
    """
    import numpy as np

    first = shards[0]
    indices = checked_indices(delta.indices, rows.total, name, method)
    check_rank_one(indices, name, method)
    shape = (*first.shape[:axis], indices.size, *first.shape[axis + 1 :])
    values = checked_values(delta.values, shape, first.dtype, name, method)
    if operation != "update":
        check_arithmetic(first.dtype, name, method)
    if operation == "div":
        _check_divisors(values, name)
    if operation == "update":
        kept = _last_of_each(indices)
        indices, values = indices[kept], values[_along(axis, kept)]
    changed = list(shards)
    for part in rows.parts_of(np.asarray(indices)):
        shard = shards[part.shard]
        new = _brought(values[_along(axis, part.at)], shard)
        changed[part.shard] = _changed(shard, axis, part, new, operation)
    return tuple(changed)


def _changed(shard: jax.Array, axis: int, part: Part, new: jax.Array, operation: str) -> jax.Array:
    at = shard.at[_along(axis, part.places)]
    if operation == "div":
        return _divided(shard, axis, part, new)
    if operation == "sub":
        return at.add(-new)
    changes: dict[str, Any] = {
        "add": at.add, "mul": at.multiply, "max": at.max, "min": at.min, "update": at.set,
    }  # fmt: skip
    changed: jax.Array = changes[operation](new)
    return changed


def _divided(shard: jax.Array, axis: int, part: Part, new: jax.Array) -> jax.Array:
    """In rounds of different rows, since to divide by a product would round differently."""
    from jax import lax

    for turn in _rounds(part.places):
        at = _along(axis, part.places[turn])
        shard = shard.at[at].set(lax.div(shard[at], new[_along(axis, turn)]))
    return shard


def _rounds(places: Any) -> list[Any]:
    """Positions of the first mention of each place, then of the second, and so on."""
    import numpy as np

    order = np.argsort(places, kind="stable")
    _, starts, counts = np.unique(places[order], return_index=True, return_counts=True)
    turn = np.empty_like(places)
    turn[order] = np.arange(places.size) - np.repeat(starts, counts)
    return [np.flatnonzero(turn == number) for number in range(counts.max(initial=0))]


def _last_of_each(indices: Any) -> Any:
    import numpy as np

    _, from_the_end = np.unique(indices[::-1], return_index=True)
    return indices.size - 1 - from_the_end


def check_arithmetic(dtype: Any, name: str, method: str) -> None:
    """Refuse to compute with truth values."""
    import numpy as np

    if dtype == np.bool_:
        raise VariableTypeError(
            f"{method} of {name!r} computes, which bool values do not; replace them instead"
        )


def _check_divisors(values: Any, name: str) -> None:
    import jax.numpy as jnp
    import numpy as np

    if jnp.issubdtype(values.dtype, np.integer) and not np.asarray(values).all():
        raise VariableError(f"scatter_div of {name!r} would divide whole numbers by 0")


def _along(axis: int, index: Any) -> tuple[Any, ...]:
    return (*[slice(None)] * axis, index)


def _brought(values: Any, shard: jax.Array) -> jax.Array:
    """``values`` in memory of jax's own, where ``shard`` is."""
    import jax
    import numpy as np

    if not isinstance(values, jax.Array):
        values = np.array(values)  # jax may otherwise keep the caller's memory as its own
    brought: jax.Array = jax.device_put(values, shard.sharding)
    return brought
