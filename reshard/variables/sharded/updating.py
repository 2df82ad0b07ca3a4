"""Makes new shards from old ones and new values; the old ones do not change.

Each function returns all new shards or raises an error; the caller then replaces all shards at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from reshard.errors import VariableError, VariableTypeError
from reshard.variables.sharded.row_updates import IndexedSlices
from reshard.variables.sharded.shard_rows import RowPart, ShardRows, as_slice
from reshard.variables.sharded.shards import are_numpy, kept_numpy, narrowed_by_jax, unwritable
from reshard.variables.sharded.values import check_rank_one, checked_indices, checked_values

if TYPE_CHECKING:
    import jax
    from jax.sharding import Sharding

    from reshard.variables.sharded.shards import Array

Combine = Callable[[Any, Any], Any]
"""Makes the new shard of an old one and its values."""


def replaced(
    shards: Sequence[Any], axis: int, rows: ShardRows, value: Any, combine: Combine
) -> tuple[Array, ...]:
    """Every shard combined with its part of ``value``, an array of the variable's shape."""
    parts = [value[_along(axis, as_slice(rows.of(number)))] for number in range(len(shards))]
    return tuple(_combined(shard, part, combine) for shard, part in zip(shards, parts, strict=True))


def scattered(
    shards: Sequence[Any], axis: int, rows: ShardRows, delta: IndexedSlices, operation: str, name: str, method: str
) -> tuple[Array, ...]:  # fmt: skip
    """Every shard, with the rows of dimension 0 in ``delta`` changed by ``operation``.

    ``operation`` is one of add, sub, mul, div, max, min and update. If a row is repeated, its values are applied one
    after another.
    """
    dtype, shape = shards[0].dtype, list(shards[0].shape)
    shape[axis] = rows.total
    indices = checked_indices(delta.indices, shape[0], name, method)
    check_rank_one(indices, name, method)
    values = checked_values(delta.values, (indices.size, *shape[1:]), dtype, name, method)
    if operation != "update":
        check_arithmetic(dtype, name, method)
    if operation == "div":
        _check_divisors(values, name)
    if operation == "update":
        kept = _last_of_each(indices)
        indices, values = indices[kept], values[kept]
    changed = list(shards)
    for part in _parts(axis, rows, indices):
        shard, new = shards[part.shard], values[part.at]
        change = _changed_numpy if are_numpy(shards) else _changed
        changed[part.shard] = change(shard, part.places, new, operation)
    return tuple(changed)


def _parts(axis: int, rows: ShardRows, indices: Any) -> list[RowPart]:
    """The part of the delta for each shard: the rows in the shard, or its columns of every row."""
    if axis == 0:
        return rows.parts_of(indices)
    columns = [_along(axis, as_slice(rows.of(number))) for number in range(len(rows.sizes))]
    return [RowPart(number, indices, at) for number, at in enumerate(columns)]


def _combined(shard: Any, part: Any, combine: Combine) -> Array:
    import numpy as np

    # A shard that is not an array, after donation or jax.tree.map, becomes a jax array if jax keeps the dtype.
    stays = isinstance(shard, np.ndarray) or (
        _place(shard) is None and narrowed_by_jax(part.dtype) is not None
    )
    if not stays:
        changed: Array = combine(shard, _brought(part, _place(shard)))
        return changed
    with np.errstate(all="ignore"):
        return kept_numpy(combine(shard, np.asarray(part)))


def _changed_numpy(shard: Any, places: Any, new: Any, operation: str) -> Array:
    import numpy as np

    changed, new = np.array(shard), np.asarray(new)
    with np.errstate(all="ignore"):  # infinities and overflow are valid results, as in jax
        if operation == "update":
            changed[places] = new
        elif operation == "div":
            for turn in _rounds(places):
                changed[places[turn]] = _quotient(changed[places[turn]], new[turn])
        else:
            getattr(np, _NUMPY[operation]).at(changed, places, new)
    return unwritable(changed)  # type: ignore[no-any-return]  # numpy or jax


_NUMPY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "max": "maximum", "min": "minimum",
}  # fmt: skip
"""numpy's name of each operation."""


def _quotient(left: Any, right: Any) -> Any:
    """Divides like ``lax.div``: integer division rounds towards zero."""
    import jax.numpy as jnp
    import numpy as np

    if not jnp.issubdtype(left.dtype, np.integer):
        return left / right
    down = left // right
    inexact = (left % right != 0) & ((left < 0) != (right < 0))
    return down + inexact.astype(left.dtype)


def _changed(shard: jax.Array, places: Any, new: Any, operation: str) -> jax.Array:
    import jax

    new = _brought(new, _whole_on_each(shard.sharding))
    at = shard.at[places]
    changes: dict[str, Any] = {
        "add": at.add, "sub": at.subtract, "mul": at.multiply, "div": partial(_divided, shard, places),
        "max": at.max, "min": at.min, "update": at.set,
    }  # fmt: skip
    changed: jax.Array = jax.device_put(changes[operation](new), shard.sharding)
    return changed


def _divided(shard: jax.Array, places: Any, new: jax.Array) -> jax.Array:
    """Divides in rounds without repeated rows; dividing by a product would round differently."""
    from jax import lax

    for turn in _rounds(places):
        at = places[turn]
        shard = shard.at[at].set(lax.div(shard[at], new[turn]))
    return shard


def _rounds(places: Any) -> list[Any]:
    """Positions of the first occurrence of each place, then of the second, and so on."""
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
    """Raises VariableTypeError for arithmetic with bool values."""
    import numpy as np

    if dtype == np.bool_:
        raise VariableTypeError(
            f"{method} of {name!r} computes, which bool values cannot; replace them instead"
        )


def _check_divisors(values: Any, name: str) -> None:
    import jax.numpy as jnp
    import numpy as np

    if jnp.issubdtype(values.dtype, np.integer) and not np.asarray(values).all():
        raise VariableError(f"scatter_div of {name!r} would divide whole numbers by 0")


def _place(shard: Any) -> Sharding | None:
    # Assigning needs no old values, so a shard need not be an array (after donation or jax.tree.map).
    return getattr(shard, "sharding", None)


def _along(axis: int, index: Any) -> tuple[Any, ...]:
    return (*[slice(None)] * axis, index)


def _whole_on_each(sharding: Sharding) -> Sharding:
    """A replicated sharding over the same devices, for arrays that the mesh may not divide."""
    from jax.sharding import NamedSharding, PartitionSpec

    if not isinstance(sharding, NamedSharding):
        return sharding
    return NamedSharding(sharding.mesh, PartitionSpec(), memory_kind=sharding.memory_kind)


def _brought(values: Any, sharding: Sharding | None) -> jax.Array:
    """A copy of ``values`` as a jax array on the devices of ``sharding``."""
    import jax
    import numpy as np

    if not isinstance(values, jax.Array):
        values = np.array(values)  # without a copy jax may share the caller's memory
    brought: jax.Array = jax.device_put(values, sharding)
    return brought
