"""Reads a variable by rows, by NumPy's indexing and by ids, only from the shards that are needed.

Indexing has two steps. First each dimension is narrowed to the needed part: rows of the shards, in rising order,
and ``beside`` slices of the other dimensions, are read into a small array of the variable's rank. Then the
index, rewritten for that array, does the rest: integers drop their dimension, masks and integer arrays select,
slices with a negative step reverse.

NumPy itself decides whether an index is valid: it is first applied to an array of the variable's shape
whose elements have no bytes.

Eager look-ups read only the shards that have the rows. Traced ids are looked up in every shard, and each row is taken
from the shard that has it, so the shards are never joined.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.errors import VariableError, VariableIndexError, VariableTypeError
from reshard.variables.sharded.in_jax import is_traced
from reshard.variables.sharded.shards import (
    RowPart,
    ShardRows,
    are_numpy,
    array_module,
    as_jax_array,
    as_slice,
    check_strategy,
)
from reshard.variables.sharded.values import checked_index_type, checked_indices, to_numpy

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


class Narrowed(Struct, frozen=True):
    """The needed indices of one dimension, as a rising range or array, and the index to apply to them."""

    needed: Any
    then: Any


def take_index(shards: Sequence[Array], axis: int, rows: ShardRows, index: Any, name: str) -> Array:
    """``variable[index]`` by NumPy's rules.

    Raises VariableIndexError, VariableTypeError or VariableError if NumPy raises IndexError,
    TypeError or ValueError. Traced indices, whose values are not known, follow jax.numpy's rules.
    """
    items = index if isinstance(index, tuple) else (index,)
    if any(map(_is_traced, items)):
        return gathered([as_jax_array(shard, name) for shard in shards], axis, rows)[index]
    items = tuple(_concrete(item, name) for item in items)
    shape = (*shards[0].shape[:axis], rows.total, *shards[0].shape[axis + 1 :])
    _check(items, shape, name)
    narrowed = _narrow(_expanded(items, len(shape)), shape, axis)
    by_dim = [n for n in narrowed if n.needed is not None]
    along = by_dim[axis].needed
    parts = rows.parts_of_range(along) if isinstance(along, range) else rows.parts_of(along)
    beside = [_slice(n.needed) for n in by_dim]
    return _finish(read(shards, axis, parts, beside), tuple(n.then for n in narrowed))


def _is_traced(item: Any) -> bool:
    import jax

    leaves = (item.start, item.stop, item.step) if isinstance(item, slice) else (item,)
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def _concrete(item: Any, name: str) -> Any:
    """An item of an index, with arrays as numpy arrays and whole numbers as int."""
    import jax.numpy as jnp
    import numpy as np

    if item is None or item is Ellipsis or isinstance(item, slice | bool | str):
        return item
    try:
        return operator.index(item)
    except TypeError:
        found = to_numpy(item, name, "indexing")
    if isinstance(item, list | tuple) and not found.size:
        return found.astype(np.intp)  # as NumPy takes an empty list
    return found.astype(np.int64) if jnp.issubdtype(found.dtype, jnp.integer) else found


def _check(items: tuple[Any, ...], shape: tuple[int, ...], name: str) -> None:
    import numpy as np

    try:
        np.broadcast_to(np.empty((), "V0"), shape)[items]
    except IndexError as error:
        kind: type[Exception] = VariableIndexError
        text = str(error)
    except TypeError as error:
        kind, text = VariableTypeError, str(error)
    except ValueError as error:
        kind, text = VariableError, str(error)
    else:
        return
    raise kind(f"{name!r} of shape {list(shape)} cannot be indexed like this: {text}")


def _expanded(items: tuple[Any, ...], rank: int) -> list[Any]:
    """One item for each dimension, and the items without a dimension (None, True, False)."""
    taken = sum(map(_dims_taken, items))
    items = items if any(i is Ellipsis for i in items) else (*items, Ellipsis)
    expanded: list[Any] = []
    for item in items:
        expanded += _whole(rank - taken) if item is Ellipsis else _without_mask(item)
    return expanded


def _dims_taken(item: Any) -> int:
    import numpy as np

    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.ndim if isinstance(item, np.ndarray) and item.dtype == bool else 1


def _whole(dims: int) -> list[slice]:
    return [slice(None)] * dims


def _without_mask(item: Any) -> Iterable[Any]:
    """A mask as the integer arrays of its true elements, which is how NumPy defines it."""
    import numpy as np

    if isinstance(item, np.ndarray) and item.dtype == bool:
        return item.nonzero() if item.ndim else [bool(item)]
    return [item]


def _narrow(items: list[Any], shape: tuple[int, ...], axis: int) -> list[Narrowed]:
    narrowed, dim = [], 0
    for item in items:
        if item is None or isinstance(item, bool):
            narrowed.append(Narrowed(None, item))
            continue
        narrowed.append(_narrowed(item, shape[dim], dim == axis))
        dim += 1
    return narrowed


def _narrowed(item: Any, size: int, sharded: bool) -> Narrowed:
    import numpy as np

    if isinstance(item, slice):
        wanted = range(*item.indices(size))
        if len(wanted) == 1:
            wanted = range(wanted[0], wanted[0] + 1)  # the step may be too large for jax
        if wanted.step > 0 or not wanted:
            return Narrowed(wanted or range(0), slice(None))
        return Narrowed(wanted[::-1], slice(None, None, -1))
    if isinstance(item, int):
        return Narrowed(range(item % size, item % size + 1), 0)
    if not sharded:
        return Narrowed(range(size), item)
    needed, then = np.unique(np.where(item < 0, item + size, item), return_inverse=True)
    return Narrowed(needed, then.reshape(item.shape))


def _slice(needed: Any) -> slice:
    if isinstance(needed, range):
        return slice(needed.start, needed.stop, needed.step)
    return slice(None)


def _finish(found: Array, then: tuple[Any, ...]) -> Array:
    import jax.numpy as jnp
    import numpy as np

    if isinstance(found, np.ndarray):
        return np.asarray(found[then])
    if any(isinstance(i, bool) for i in then):  # jax does not index with True and False
        places = np.arange(found.size).reshape(found.shape)[then]
        return jnp.take(found.ravel(), places).reshape(places.shape)
    return found[then]


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
