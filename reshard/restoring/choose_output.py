"""Chooses the output of each tensor: numpy, jax in shards, a ShardedVariable or PRNG keys.

``like``, the layout and the partition decide it. A layout that names the tensor wins over the sharding in ``like``; a
partition excludes both.
"""

from __future__ import annotations

from typing import Any

from reshard.errors import LayoutError
from reshard.formats.contents import StoredTensor
from reshard.geometry.dtypes import numpy_dtype
from reshard.restoring.match import SourceLeaf, has_jax, key_type, restored_dtype
from reshard.restoring.outputs import (
    HostMemory,
    JaxArray,
    Key,
    NumpyArray,
    RestoredOutput,
    Shards,
    UncommittedArray,
    default_device,
    jax_array,
)
from reshard.restoring.partitions import Partitions, in_shards, recorded_strategy
from reshard.restoring.request import RestoreRequest
from reshard.restoring.shardings import TensorSharding, ToShard, real_sharding
from reshard.restoring.target_tree import TargetLeaf
from reshard.variables.sharded.shards import are_numpy, narrowed_by_jax


def target_leaf(leaf: SourceLeaf, request: RestoreRequest) -> TargetLeaf | None:
    """The leaf of ``like`` that this leaf is restored onto; None without ``like``."""
    return None if request.like is None else request.like.leaves.get(leaf.name)


def becomes_jax(leaf: SourceLeaf, target: TargetLeaf | None, request: RestoreRequest) -> bool:
    """True if the tensor becomes a jax array, or several."""
    if leaf.stored is None or leaf.stored.is_key:
        return False  # the data of keys is uint32, which jax does not narrow
    if _partition(leaf, leaf.stored, target, request) is not None:
        return bool(request.partitions.places) or _jax_keeps(restored_dtype(leaf, target))
    if target is None:
        has_layout = request.shardings is not None
        return has_layout and not leaf.is_scalar and not _stays_numpy(leaf, target, request)
    if target.kind == "shards":
        return _jax_keeps(target.dtype) or any(map(_on_jax, target.leaf.variables))
    return target.kind == "jax"


def choose_output(
    leaf: SourceLeaf, stored: StoredTensor, dtype: str, request: RestoreRequest
) -> RestoredOutput:
    """The output of a tensor; LayoutError, naming it, if its layout or partition cannot split it."""
    shape, target = stored.spec.shape, target_leaf(leaf, request)
    sharding = _sharding(leaf, stored, dtype, target, request)
    partition = _partition(leaf, stored, target, request)
    if partition is not None:
        _refuse_both(leaf.name, sharding, target)
        return request.partitions.output(leaf.name, stored, dtype, partition)
    if sharding.rows is not None:
        return _partitioned_by_file(leaf.name, stored, dtype, sharding.rows, request.partitions)
    if target is not None:
        return _like_target(leaf, stored, dtype, target, sharding, request.partitions)
    if leaf.key_implementation is not None and has_jax():  # else the array of their data
        rank = len(_outer_shape(leaf, stored))
        data = _on_devices(leaf.name, shape, dtype, sharding, rank)
        return Key(leaf.name, leaf.key_implementation, data)
    if leaf.is_scalar or request.shardings is None or _stays_numpy(leaf, target, request):
        return NumpyArray(shape, leaf.is_scalar)
    return _on_devices(leaf.name, shape, dtype, sharding)


def _stays_numpy(leaf: SourceLeaf, target: TargetLeaf | None, request: RestoreRequest) -> bool:
    """True if it was saved as a numpy array, such as a data iterator's state, and no layout names it."""
    if target is not None or request.shardings is None or leaf.stored is None or not leaf.is_numpy:
        return False
    dtype = restored_dtype(leaf, target)
    return not request.shardings.names(_to_shard(leaf, leaf.stored, leaf.stored.spec.shape, dtype))


def _to_shard(
    leaf: SourceLeaf, stored: StoredTensor, shape: tuple[int, ...], dtype: str
) -> ToShard:
    layout = stored.spec.layout
    return ToShard(leaf.name, shape, dtype, None if layout is None else layout.axes)


def _jax_keeps(dtype: str | None) -> bool:
    return dtype is None or narrowed_by_jax(numpy_dtype(dtype)) is None


def _on_jax(shard: Any) -> bool:
    place = _place_of(shard)
    return place is not None and not isinstance(place, HostMemory)


def _partition(
    leaf: SourceLeaf, stored: StoredTensor, target: TargetLeaf | None, request: RestoreRequest
) -> Any:
    is_whole = stored.is_key or leaf.is_scalar or (target is not None and target.kind == "scalar")
    return None if is_whole else request.partitions.partition_of(leaf.name, stored.spec.shape)


def _sharding(
    leaf: SourceLeaf,
    stored: StoredTensor,
    dtype: str,
    target: TargetLeaf | None,
    request: RestoreRequest,
) -> TensorSharding:
    """The sharding that the layout gives, else the one in ``like``."""
    own = None if target is None else target.sharding
    is_array = target is None or target.kind in ("jax", "key", "shards")
    if request.shardings is not None and is_array and not leaf.is_scalar:
        # Where ``like`` takes the data of keys, the layout splits the shape of the data.
        raw_data = target is not None and target.kind != "key"
        shape = stored.spec.shape if raw_data else _outer_shape(leaf, stored)
        found = request.shardings.of(_to_shard(leaf, stored, shape, dtype))
        if found.is_named or own is None:
            return found
    return TensorSharding(None if own is None else real_sharding(own, leaf.name))


def _outer_shape(leaf: SourceLeaf, stored: StoredTensor) -> tuple[int, ...]:
    """The shape that a layout splits: for PRNG keys it is that of the keys, not of their data."""
    if leaf.key_implementation is None:
        return stored.spec.shape
    return key_type(stored, leaf.key_implementation)[0]


def _refuse_both(name: str, sharding: TensorSharding, target: TargetLeaf | None) -> None:
    if sharding.is_named or (target is not None and target.is_placed):
        by = "the layout" if sharding.is_named else "the sharding in like"
        raise LayoutError(
            f"{name!r} is split both by the partition and by {by}; take it out of one of them"
        )


def _partitioned_by_file(
    name: str, stored: StoredTensor, dtype: str, rows: tuple[int, int], partitions: Partitions
) -> Shards:
    """Shards as a layout file partitions them; the axis is the file's."""
    axis, shards = rows
    by_file = Partitions((), shards, axis, partitions.strategy, partitions.places)
    return by_file.output(name, stored, dtype, shards)


def _like_target(
    leaf: SourceLeaf,
    stored: StoredTensor,
    dtype: str,
    target: TargetLeaf,
    sharding: TensorSharding,
    partitions: Partitions,
) -> RestoredOutput:
    shape = stored.spec.shape
    if target.kind == "shards":
        if sharding.is_named:
            raise LayoutError(
                f"{leaf.name!r} is a ShardedVariable in like, but the layout splits it too; take it out of the "
                "layout, or make it a jax.ShapeDtypeStruct in like"
            )
        _refuse_strategy(leaf.name, stored, target.leaf.partition_strategy, partitions)
        return _like_variable(target.leaf, shape, dtype)
    if target.kind == "key":
        data = _on_devices(leaf.name, shape, dtype, sharding, len(target.shape))
        return Key(leaf.name, leaf.key_implementation or "", data)
    if target.kind == "jax":
        return _on_devices(leaf.name, shape, dtype, sharding)
    return NumpyArray(shape, target.kind == "scalar")


def _refuse_strategy(
    name: str, stored: StoredTensor, strategy: str, partitions: Partitions
) -> None:
    if recorded_strategy(stored) == "mod" and strategy == "div" and partitions.strategy != "div":
        raise LayoutError(
            f"{name!r} was saved for 'mod' look-up, but like has a ShardedVariable for 'div'; make it one for "
            "'mod', or pass partition_strategy='div' to restore its rows in their logical order"
        )


def _like_variable(variable: Any, shape: tuple[int, ...], dtype: str) -> Shards:
    """Shards with the rows and places of the shards of ``variable``."""
    places = [_place_of(shard) for shard in variable.variables]
    return in_shards(
        variable.name,
        shape,
        dtype,
        variable.axis,
        variable.partition_strategy,
        variable.rows,
        places,
    )


def _place_of(shard: Any) -> Any:
    if are_numpy([shard]):
        return HostMemory()
    sharding = getattr(shard, "sharding", None)
    return sharding if getattr(shard, "committed", sharding is not None) else None


def _on_devices(
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    sharding: TensorSharding,
    rank: int | None = None,
) -> JaxArray | UncommittedArray:
    if sharding.sharding is None:
        return UncommittedArray(shape, dtype, default_device())
    return jax_array(name, shape, dtype, sharding.sharding, rank)
