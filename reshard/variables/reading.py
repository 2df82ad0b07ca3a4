"""Rows of a variable brought together from the shards that hold them, and only from those."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reshard.errors import VariableError
from reshard.variables.shard_rows import Part, ShardRows, as_slice

if TYPE_CHECKING:
    import jax
    import numpy as np


def gathered(shards: Sequence[jax.Array], axis: int, rows: ShardRows) -> jax.Array:
    """The whole variable as one jax array, where the first shard is."""
    every = [slice(None)] * shards[0].ndim
    return read(shards, axis, rows.parts_of_range(range(rows.total)), every)


def filled(shards: Sequence[jax.Array], axis: int, rows: ShardRows) -> np.ndarray[Any, Any]:
    """The whole variable as one numpy array; no device ever holds the whole."""
    import numpy as np

    _check_addressable(shards)
    first = shards[0]
    whole = np.empty((*first.shape[:axis], rows.total, *first.shape[axis + 1 :]), first.dtype)
    for number, shard in enumerate(shards):
        whole[(slice(None),) * axis + (as_slice(rows.of(number)),)] = np.asarray(shard)
    return whole


def read(
    shards: Sequence[jax.Array], axis: int, parts: Sequence[Part], beside: Sequence[slice]
) -> jax.Array:
    """The wanted rows as one jax array of the variable's rank, cut by ``beside`` along other axes.

    Every shard is cut where it lies; where the parts lie on different devices they then move to
    those of the first.
    """
    import jax.numpy as jnp

    parts = parts or [Part(0, range(0), range(0))]
    pieces = on_one_device([_piece(shards[p.shard], axis, p.places, beside) for p in parts])
    whole = pieces[0] if len(pieces) == 1 else _joined(pieces, axis)
    order = _order(parts)
    return whole if order is None else jnp.take(whole, order, axis=axis)


def on_one_device(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """The arrays where jax can compute with them together: on the devices of the first."""

    known = [_known(a) for a in arrays]
    if any(a is None for a in known):  # jax.jit has all its arguments on the same devices
        return list(arrays)
    _check_addressable(known)
    if len(set(map(_devices, known))) == 1:
        return list(arrays)
    target = min(known[0].devices(), key=lambda d: d.id)
    return [_moved(a, target) for a in arrays]


def _known(array: Any) -> Any:
    """The array with values behind it: ``grad`` computes on such; None under ``jit``."""
    import jax

    return array.to_concrete_value() if isinstance(array, jax.core.Tracer) else array


def _devices(array: jax.Array) -> Any:
    """Equal for arrays that jax computes with together: in a mesh the order counts too."""
    devices = array.devices()
    return (
        frozenset(devices) if len(devices) == 1 else getattr(array.sharding, "mesh", array.sharding)
    )


def _moved(array: Any, device: Any) -> Any:
    import jax

    if isinstance(array, jax.core.Tracer):
        return jax.device_put(array, device)
    with jax.core.eval_context():  # a function that is traced meanwhile gets it as moved already
        return jax.device_put(array, device)


def _joined(pieces: Sequence[jax.Array], axis: int) -> jax.Array:
    import jax.numpy as jnp

    dtype = pieces[0].dtype
    if dtype.name in {
        "int2",
        "uint2",
    }:  # jaxlib 0.10.2 ends the process when it joins these on a CPU
        return jnp.concatenate([p.astype(jnp.int8) for p in pieces], axis=axis).astype(dtype)
    return jnp.concatenate(pieces, axis=axis)


def _check_addressable(arrays: Sequence[jax.Array]) -> None:
    if not all(getattr(a, "is_fully_addressable", True) for a in arrays):
        raise VariableError(
            "shards on devices of other processes cannot be brought together in this one; save the "
            "variable, or read the shards that are here from .variables"
        )


def _piece(shard: jax.Array, axis: int, places: Any, beside: Sequence[slice]) -> jax.Array:
    import jax.numpy as jnp

    if isinstance(places, range):
        cut = (*beside[:axis], as_slice(places), *beside[axis + 1 :])
        whole = all(s.indices(n) == (0, n, 1) for s, n in zip(cut, shard.shape, strict=True))
        return shard if whole else shard[cut]
    cut = (*beside[:axis], slice(None), *beside[axis + 1 :])
    return jnp.take(shard[cut], places, axis=axis)


def _order(parts: Sequence[Part]) -> np.ndarray[Any, Any] | None:
    """Where each wanted row is among the parts one after another; None where already in place."""
    import numpy as np

    at = np.concatenate([np.asarray(p.at, np.int64) for p in parts])
    if (at[1:] > at[:-1]).all():
        return None
    order = np.empty_like(at)
    order[at] = np.arange(at.size)
    return order
