"""Makes the shards of a variable: splits an array, and puts new values, of all or of some rows, in place of old ones.

Each function returns all new shards or raises an error; the caller then replaces all shards at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct

from reshard.errors import ReshardError, VariableError, VariableTypeError
from reshard.geometry.dtypes import narrowed_by_jax
from reshard.layout.partitioners import Partitioner, recorded_partitioner
from reshard.variables.sharded.shards import (
    RowPart,
    ShardRows,
    are_numpy,
    as_jax_array,
    as_slice,
    check_not_deleted,
    kept_numpy,
    unwritable,
    whole_number,
)
from reshard.variables.sharded.values import check_rank_one, checked_indices, checked_values

if TYPE_CHECKING:
    import jax
    from jax.sharding import Sharding

    from reshard.variables.sharded.shards import Array


MAX_SHARDS = 1 << 20
"""More would cost gigabytes for the array objects alone."""


def shard_count(partition: Any, shape: Sequence[int], dtype: Any, axis: int, name: str) -> int:
    """The number of shards along ``axis``, at least one.

    ``partition`` is a count, a partitioner, or a list of parts per dimension.
    Raises VariableTypeError for anything else, VariableError for a number that makes no sense.
    """
    given = partition(tuple(shape), dtype, axis) if callable(partition) else partition
    if hasattr(given, "__len__") and not isinstance(given, str | bytes):
        given = _parts_along(list(given), shape, axis, name)
    found = whole_number(given)
    if found == 0 and callable(partition) and not shape[axis]:
        found = 1  # FixedShardsPartitioner answers 0 for an axis without rows
    if found is None:
        raise VariableTypeError(
            f"the partition of {name!r} must be a number of shards, a partitioner or a list of "
            f"parts per dimension, not {partition!r}"
        )
    if not 1 <= found <= MAX_SHARDS:
        raise VariableError(
            f"{name!r} cannot be split into {found} shards; expected 1 to {MAX_SHARDS}"
        )
    return found


def known_partitioner(partition: Any) -> Partitioner | None:
    """The partition if it is one of this package's partitioners, which can be recorded; else None."""
    return partition if recorded_partitioner(partition) else None


def cut(array: Any, rows: ShardRows, axis: int, name: str, devices: Any) -> list[Array]:
    """The shards of ``array``, dealt to ``devices`` in turn; with None they stay on the array's device, or numpy."""
    targets = _targets(devices, name)
    cuts = [(slice(None),) * axis + (as_slice(rows.of(n)),) for n in range(len(rows.sizes))]
    check_not_deleted(array, name, "the array to split as")
    try:
        return [_placed(array[at], name, targets[n % len(targets)]) for n, at in enumerate(cuts)]
    except ValueError as error:
        if isinstance(error, ReshardError):
            raise
        raise VariableError(f"a shard of {name!r} cannot be put on its device: {error}") from None


def _placed(piece: Any, name: str, device: Any) -> Array:
    import numpy as np

    if device is None and isinstance(piece, np.ndarray):
        return piece
    return as_jax_array(piece, name, device)


def _parts_along(parts: Sequence[Any], shape: Sequence[int], axis: int, name: str) -> Any:
    if len(parts) != len(shape):
        raise VariableError(
            f"the partition {list(parts)} of {name!r} must name one number of parts for each "
            f"dimension of shape {list(shape)}"
        )
    other = [dim for dim, count in enumerate(parts) if dim != axis and count != 1]
    if other:
        raise VariableError(
            f"the partition {list(parts)} of {name!r} splits dimension {other[0]}, but its shards "
            f"are along axis {axis}; name that axis, or split only along it"
        )
    return parts[axis]


def _targets(devices: Any, name: str) -> list[Any]:
    targets = [None] if devices is None else devices
    if not isinstance(targets, Iterable):
        raise VariableTypeError(
            f"the devices for the shards of {name!r} must be a list of jax devices or shardings, not "
            f"{devices!r}"
        )
    targets = list(targets)
    if not targets:
        raise VariableError(f"no devices were given for the shards of {name!r}; give at least one")
    return targets


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


# ruff: noqa: ARG002  TensorFlow's arguments without a meaning here


class IndexedSlices(Struct, frozen=True):
    """New rows for the ``scatter_*`` methods: ``values[i]`` belongs to row ``indices[i]``.

    ``indices`` are whole numbers in one dimension, ``values`` has as many rows. The variable checks both.
    """

    values: Any
    indices: Any


def indexed_slices(delta: Any, values: Any, name: str, method: str) -> IndexedSlices:
    """IndexedSlices from the arguments ``(indices, values)``, or from one object with both."""
    if values is not None and not isinstance(values, bool):
        return IndexedSlices(values, delta)
    if hasattr(delta, "indices") and hasattr(delta, "values"):
        return IndexedSlices(delta.values, delta.indices)
    raise VariableTypeError(
        f"{method} of {name!r} expects IndexedSlices(values, indices), or indices and values, not "
        f"a {type(delta).__name__} alone"
    )


class RowUpdates:
    """The ``scatter_*`` methods, all of which call ``_scatter``.

    They take ``(indices, values)`` or one ``IndexedSlices(values, indices)``. ``indices`` count rows of
    dimension 0, as in ``sparse_read``, along whichever axis the variable is split; ``values`` have the variable's dtype
    and, except for dimension 0, its shape. If an index occurs twice, both values are applied, in order.

    Raises VariableIndexError for an index out of range, VariableTypeError for another dtype,
    VariableError for another shape and under tracing; an error leaves the variable unchanged.
    """

    name: Any
    _scatter: Any

    def scatter_add(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Adds rows."""
        delta = indexed_slices(sparse_delta, values, self.name, "scatter_add")
        changed: Self = self._scatter("scatter_add", "add", delta)
        return changed

    def scatter_sub(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Subtracts rows."""
        delta = indexed_slices(sparse_delta, values, self.name, "scatter_sub")
        changed: Self = self._scatter("scatter_sub", "sub", delta)
        return changed

    def scatter_mul(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Multiplies rows."""
        delta = indexed_slices(sparse_delta, values, self.name, "scatter_mul")
        changed: Self = self._scatter("scatter_mul", "mul", delta)
        return changed

    def scatter_div(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Divides rows; integer division rounds towards zero."""
        delta = indexed_slices(sparse_delta, values, self.name, "scatter_div")
        changed: Self = self._scatter("scatter_div", "div", delta)
        return changed

    def scatter_max(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Keeps the larger of the old and new elements of rows."""
        delta = indexed_slices(sparse_delta, values, self.name, "scatter_max")
        changed: Self = self._scatter("scatter_max", "max", delta)
        return changed

    def scatter_min(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Keeps the smaller of the old and new elements of rows."""
        delta = indexed_slices(sparse_delta, values, self.name, "scatter_min")
        changed: Self = self._scatter("scatter_min", "min", delta)
        return changed

    def scatter_update(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Replaces rows; the last value of a repeated index counts."""
        delta = indexed_slices(sparse_delta, values, self.name, "scatter_update")
        changed: Self = self._scatter("scatter_update", "update", delta)
        return changed

    def batch_scatter_update(
        self, sparse_delta: Any, values: Any = None, use_locking: bool = False, name: str | None = None
    ) -> Self:  # fmt: skip
        """Replaces rows like ``scatter_update``; TensorFlow's batches have one dimension too."""
        delta = indexed_slices(sparse_delta, values, self.name, "batch_scatter_update")
        changed: Self = self._scatter("batch_scatter_update", "update", delta)
        return changed
