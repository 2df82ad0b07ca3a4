"""Reads rows of a variable, only from the shards that have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reshard.errors import VariableError
from reshard.variables.sharded.shard_rows import RowPart, ShardRows, as_slice
from reshard.variables.sharded.shards import are_numpy, array_module

if TYPE_CHECKING:
    import jax
    import numpy as np

    from reshard.variables.sharded.shards import Array


def gathered(shards: Sequence[Array], axis: int, rows: ShardRows) -> Array:
    """The whole variable as one array: a jax array on the devices of the first shard, or a new numpy array."""
    every = [slice(None)] * shards[0].ndim
    return read(shards, axis, rows.parts_of_range(range(rows.total)), every)


def whole_array(shards: Sequence[Array], axis: int, rows: ShardRows) -> np.ndarray[Any, Any]:
    """The whole variable as one numpy array; no device holds all of it at any time."""
    import numpy as np

    _check_addressable(shards)
    first = shards[0]
    whole = np.empty((*first.shape[:axis], rows.total, *first.shape[axis + 1 :]), first.dtype)
    for number, shard in enumerate(shards):
        whole[(slice(None),) * axis + (as_slice(rows.of(number)),)] = np.asarray(shard)
    return whole


def read(
    shards: Sequence[Array], axis: int, parts: Sequence[RowPart], beside: Sequence[slice]
) -> Array:
    """The rows of ``parts`` as one array of the variable's rank, sliced by ``beside`` along other axes.

    Every shard is sliced on its own device; parts on different devices then move to those of the first.
    For numpy shards the result is a new array, which can be written to.
    """
    parts = parts or [RowPart(0, range(0), range(0))]
    xp = array_module(shards)
    pieces = on_one_device([_piece(xp, shards[p.shard], axis, p.places, beside) for p in parts])
    whole = pieces[0] if len(pieces) == 1 else _joined(xp, pieces, axis)
    order = _order(parts)
    if order is not None:
        whole = xp.take(whole, order, axis=axis)
    found: Array = whole.copy() if whole is pieces[0] and are_numpy(pieces) else whole
    return found


def on_one_device(arrays: Sequence[Any]) -> list[Any]:
    """The arrays on the devices of the first, so that jax can compute with all of them."""
    if are_numpy(arrays):
        return list(arrays)
    known = [_known(a) for a in arrays]
    if any(a is None for a in known):  # under jax.jit all arguments are on the same devices
        return list(arrays)
    _check_addressable(known)
    placed = [a for a in known if hasattr(a, "devices")]  # numpy arrays follow the others
    if len(set(map(_devices, placed))) <= 1:
        return list(arrays)
    target = min(placed[0].devices(), key=lambda d: d.id)
    return [_moved(a, target) for a in arrays]


def _known(array: Any) -> Any:
    """The concrete array behind a tracer of ``grad``; None under ``jit``, which has no concrete array."""
    import jax

    return array.to_concrete_value() if isinstance(array, jax.core.Tracer) else array


def _devices(array: jax.Array) -> Any:
    """Equal for arrays that jax can combine; in a mesh the order of devices counts too."""
    devices = array.devices()
    return (
        frozenset(devices) if len(devices) == 1 else getattr(array.sharding, "mesh", array.sharding)
    )


def _moved(array: Any, device: Any) -> Any:
    import jax

    if isinstance(array, jax.core.Tracer):
        return jax.device_put(array, device)
    with jax.core.eval_context():  # moved now, not as part of a function that is being traced
        return jax.device_put(array, device)


def _joined(xp: Any, pieces: Sequence[Any], axis: int) -> Any:
    dtype = pieces[0].dtype
    if dtype.name in {
        "int2",
        "uint2",
    }:  # jaxlib 0.10.2 ends the process when it joins these on a CPU
        return xp.concatenate([p.astype(xp.int8) for p in pieces], axis=axis).astype(dtype)
    return xp.concatenate(pieces, axis=axis)


def _check_addressable(arrays: Sequence[Any]) -> None:
    if not all(getattr(a, "is_fully_addressable", True) for a in arrays):
        raise VariableError(
            "shards on devices of other processes cannot be brought together in this one; save the "
            "variable, or read the shards that are here from .variables"
        )


def _piece(xp: Any, shard: Any, axis: int, places: Any, beside: Sequence[slice]) -> Any:
    if isinstance(places, range):
        cut = (*beside[:axis], as_slice(places), *beside[axis + 1 :])
        whole = all(s.indices(n) == (0, n, 1) for s, n in zip(cut, shard.shape, strict=True))
        return shard if whole else shard[cut]
    cut = (*beside[:axis], slice(None), *beside[axis + 1 :])
    return xp.take(shard[cut], places, axis=axis)


def _order(parts: Sequence[RowPart]) -> np.ndarray[Any, Any] | None:
    """The position of each wanted row among the joined parts; None if they are in order already."""
    import numpy as np

    at = np.concatenate([np.asarray(p.at, np.int64) for p in parts])
    if (at[1:] > at[:-1]).all():
        return None
    order = np.empty_like(at)
    order[at] = np.arange(at.size)
    return order
