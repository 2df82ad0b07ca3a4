"""NumPy's indexing of a variable in shards, which reads only the shards that it needs.

Indexing has two steps. First each dimension is narrowed to the needed part: rows of the shards, in rising order,
and ``beside`` slices of the other dimensions, are read into a small array of the variable's rank. Then the
index, rewritten for that array, does the rest: integers drop their dimension, masks and integer arrays select,
slices with a negative step reverse.

NumPy itself decides whether an index is valid: it is first applied to an array of the variable's shape
whose elements have no bytes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.errors import VariableError, VariableIndexError, VariableTypeError
from reshard.variables.sharded.reading import gathered, read
from reshard.variables.sharded.shard_rows import ShardRows
from reshard.variables.sharded.shards import as_jax_array
from reshard.variables.sharded.values import to_numpy

if TYPE_CHECKING:
    from reshard.variables.sharded.shards import Array


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
