"""All shards of a variable as one array, in the order of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reshard.errors import VariableError
from reshard.variables.shard_rows import ShardRows, as_slice

if TYPE_CHECKING:
    import jax
    import numpy as np


def gathered(shards: Sequence[jax.Array], axis: int, rows: ShardRows) -> jax.Array:
    """One jax array, on the devices of the first shard where the shards lie on different ones."""
    import jax.numpy as jnp

    whole = jnp.concatenate(on_one_device(shards), axis=axis)
    return jnp.take(whole, _places(rows), axis=axis) if rows.strategy == "mod" else whole


def filled(shards: Sequence[jax.Array], axis: int, rows: ShardRows) -> np.ndarray[Any, Any]:
    """One numpy array; each shard is copied to its place, so no device holds the whole."""
    import numpy as np

    first = shards[0]
    whole = np.empty((*first.shape[:axis], rows.total, *first.shape[axis + 1 :]), first.dtype)
    for number, shard in enumerate(shards):
        whole[(slice(None),) * axis + (as_slice(rows.of(number)),)] = np.asarray(shard)
    return whole


def on_one_device(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """The arrays where jax can compute with them together: on the devices of the first."""
    import jax

    if any(isinstance(a, jax.core.Tracer) for a in arrays):
        return list(arrays)
    if len({frozenset(a.devices()) for a in arrays}) == 1:
        return list(arrays)
    if not all(a.is_fully_addressable for a in arrays):
        raise VariableError(
            "shards on devices of other processes cannot be gathered on one device; save the "
            "variable, or read the shards that are here from .variables"
        )
    target = min(arrays[0].devices(), key=lambda d: d.id)
    return [jax.device_put(a, target) for a in arrays]


def _places(rows: ShardRows) -> np.ndarray[Any, Any]:
    """Place of each row where the shards lie one after another."""
    import numpy as np

    shard, place = rows.owners(np.arange(rows.total), np)
    places: np.ndarray[Any, Any] = np.asarray(rows.starts, np.int64)[shard] + place
    return places
