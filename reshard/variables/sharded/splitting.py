"""Splits an array into shards, whose number comes from a count, a partitioner or parts per dimension."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from reshard.errors import ReshardError, VariableError, VariableTypeError
from reshard.layout.partitioners import Partitioner, recorded_partitioner
from reshard.variables.sharded.shard_rows import ShardRows, as_slice
from reshard.variables.sharded.shards import as_jax_array, check_not_deleted, whole_number

if TYPE_CHECKING:
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
