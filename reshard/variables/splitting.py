"""Into how many shards an array is cut, from a count, a partitioner or parts per dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reshard.errors import VariableError, VariableTypeError
from reshard.variables.shard_rows import ShardRows, as_slice
from reshard.variables.shards import as_jax_array

if TYPE_CHECKING:
    import jax

MAX_SHARDS = 1 << 20
"""More would cost gigabytes for the arrays' own bookkeeping."""


def shard_count(partition: Any, shape: Sequence[int], dtype: Any, axis: int, name: str) -> int:
    """How many shards ``partition`` asks for along ``axis``: at least one.

    ``partition`` is a count, a partitioner, or parts per dimension as partitioners give them.
    Raises VariableTypeError for anything else, and VariableError where it makes no sense.
    """
    found = partition(tuple(shape), dtype, axis) if callable(partition) else partition
    if isinstance(found, Sequence) and not isinstance(found, str | bytes):
        found = _parts_along(found, shape, axis, name)
        found = max(1, found) if callable(partition) else found
    if not isinstance(found, int) or isinstance(found, bool):
        raise VariableTypeError(
            f"the partition of {name!r} must be a number of shards, a partitioner or a list of "
            f"parts per dimension, not {partition!r}"
        )
    if not 1 <= found <= MAX_SHARDS:
        raise VariableError(
            f"{name!r} cannot be split into {found} shards; expected 1 to {MAX_SHARDS}"
        )
    return found


def cut(array: Any, rows: ShardRows, axis: int, name: str, devices: Any) -> list[jax.Array]:
    """The shards of ``array``, dealt to ``devices`` in turn (None: where the array is)."""
    targets = _targets(devices, name)
    cuts = [(slice(None),) * axis + (as_slice(rows.of(n)),) for n in range(len(rows.sizes))]
    return [as_jax_array(array[at], name, targets[n % len(targets)]) for n, at in enumerate(cuts)]


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
            f"lie along axis {axis}; name that axis, or split only along it"
        )
    return parts[axis]


def _targets(devices: Any, name: str) -> list[Any]:
    targets = [None] if devices is None else list(devices)
    if not targets:
        raise VariableError(f"no devices were given for the shards of {name!r}; give at least one")
    return targets
