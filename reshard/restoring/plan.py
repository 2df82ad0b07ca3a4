"""Plans a restore: which tensors to read, and what each becomes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from reshard.errors import LayoutError
from reshard.formats.base import Reader, StoredTensor
from reshard.formats.leaf_paths import renamed_leaves
from reshard.geometry.dtypes import numpy_dtype
from reshard.layout.changes import Changes
from reshard.layout.prefixes import pattern_hint
from reshard.planning.rules import rewrites
from reshard.restoring.match import Kept, check_fit, check_for_jax, key_type, restored_dtype
from reshard.restoring.mismatches import Mismatches
from reshard.restoring.nested import empty_value
from reshard.restoring.options import Missing, Unexpected
from reshard.restoring.outputs import (
    Form,
    HostMemory,
    InShards,
    JaxArray,
    Key,
    NumpyArray,
    Uncommitted,
    default_device,
    jax_array,
)
from reshard.restoring.partitions import Partitions, in_shards, recorded_strategy
from reshard.restoring.prefix_hints import layout_hint, target_hint
from reshard.restoring.shardings import Placement, Spot, real_sharding
from reshard.restoring.target_tree import TargetLeaf, TargetTree
from reshard.restoring.tensor_read import TensorRead
from reshard.variables.sharded.shards import are_numpy, narrowed_by_jax


class RestoreRequest(Struct, frozen=True):
    """Everything that is asked of a restore."""

    changes: Changes = field(default_factory=Changes)
    like: TargetTree | None = None
    placement: Placement | None = None
    partitions: Partitions = field(default_factory=Partitions)
    missing: Missing = "error"
    unexpected: Unexpected = "error"


class RestorePlan(Struct, frozen=True):
    """What to do.

    Attributes:
        leaves: what is kept of the checkpoint, in its order.
        values: of leaves that are no tensors, and of those that stay as ``like`` has them.
    """

    leaves: tuple[Kept, ...]
    reads: tuple[TensorRead, ...]
    values: Mapping[str, Any]


def plan_restore(reader: Reader, wish: RestoreRequest) -> RestorePlan:
    """The tensors to read and what each becomes.

    Raises one TreeError for everything that does not fit, PlanError for rules that make no sense,
    LayoutError, naming the tensor, for what cannot be split as asked.
    """
    kept = _kept(reader, wish.changes)
    wanted = _wanted(kept, wish)
    if wish.placement is not None:
        wish.placement.look_up([k.name for k in wanted if k.stored is not None])
    _check(reader, kept, wanted, wish)
    values = {k.name: _plain(k) for k in wanted if k.stored is None}
    if wish.like is not None:
        names = {k.name for k in kept}
        values |= {n: asked.leaf for n, asked in wish.like.leaves.items() if n not in names}
    reads = tuple(_read(k, k.stored, wish) for k in wanted if k.stored is not None)
    return RestorePlan(kept, reads, values)


def _kept(reader: Reader, changes: Changes) -> tuple[Kept, ...]:
    specs = {name: stored.spec for name, stored in reader.tensors.items()}
    keys = [name for name, stored in reader.tensors.items() if stored.is_key]
    items = reader.container.naming_items
    kept = rewrites(changes, [leaf.name for leaf in reader.leaves], specs, keys)
    leaves = renamed_leaves(reader.leaves, {r.source: r.target for r in kept}, items).leaves
    return tuple(
        Kept(
            rewrite.target,
            leaf,
            reader.tensors.get(rewrite.source),
            rewrite.dtype,
            rewrite.saturate,
        )
        for rewrite, leaf in zip(kept, leaves, strict=True)
    )


def _wanted(kept: Sequence[Kept], wish: RestoreRequest) -> list[Kept]:
    return [k for k in kept if wish.like is None or k.name in wish.like.leaves]


def _check(
    reader: Reader, kept: Sequence[Kept], wanted: Sequence[Kept], wish: RestoreRequest
) -> None:
    found = Mismatches(reader.uri)
    if wish.like is not None:
        _check_names(kept, wish.like, wish, found, reader.container.naming_items)
    for leaf in wanted:
        asked = _asked(leaf, wish)
        if asked is not None:
            check_fit(leaf, asked, found)
        if leaf.stored is not None and _is_for_jax(leaf, asked, wish):
            check_for_jax(leaf, asked, found)
    if wish.placement is not None:
        _check_placed(wanted, wish, wish.placement, found)
    found.refuse()
    _refuse_idle(wish.partitions, [k.name for k in wanted if k.stored is not None])


def _check_names(
    kept: Sequence[Kept],
    like: TargetTree,
    wish: RestoreRequest,
    found: Mismatches,
    items: Collection[str],
) -> None:
    names = {k.name for k in kept}
    if names.isdisjoint(like.leaves):
        found.hint(target_hint(like.leaves, [k.name for k in kept], items))
    if wish.missing == "error":
        for name, asked in like.leaves.items():
            if name not in names:
                what = (
                    ""
                    if asked.kind in ("string", "scalar")
                    else f" ({asked.dtype} of shape {list(asked.shape)})"
                )
                found.add("missing", f"{name or '(the whole tree)'}{what}")
    if wish.unexpected == "error":
        for leaf in kept:
            if leaf.has_data and leaf.name not in like.leaves:
                found.add("unexpected", f"{leaf.name} ({leaf.what})")


def _check_placed(
    wanted: Sequence[Kept], wish: RestoreRequest, placement: Placement, found: Mismatches
) -> None:
    names = [k.name for k in wanted if k.stored and _is_for_jax(k, _asked(k, wish), wish)]
    for name in placement.lacking(names):
        found.add("unplaced", name)
    stored = [k.name for k in wanted if k.stored]
    idle = placement.idle(stored)
    for name in idle:
        found.add("idle", name or "(the whole tree)")
    if len(placement.lacking(names)) == len(names):
        found.hint(layout_hint(idle, stored))


def _refuse_idle(partitions: Partitions, names: Sequence[str]) -> None:
    idle = partitions.idle(names)
    if idle:
        some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        raise LayoutError(
            f"partition {idle[0]!r} matches none of the {len(names)} tensors ({some})"
            f"{pattern_hint(re.compile(idle[0]), names)}; correct or remove it"
        )


def _asked(kept: Kept, wish: RestoreRequest) -> TargetLeaf | None:
    return None if wish.like is None else wish.like.leaves.get(kept.name)


def _is_for_jax(kept: Kept, asked: TargetLeaf | None, wish: RestoreRequest) -> bool:
    """Whether the tensor becomes a jax array, or several."""
    if kept.stored is None or kept.stored.is_key:
        return False  # The data of keys is uint32, which jax holds.
    if _partition(kept, kept.stored, asked, wish) is not None:
        return bool(wish.partitions.places) or _jax_keeps(restored_dtype(kept, asked))
    if asked is not None and asked.kind == "shards":
        return _jax_keeps(asked.dtype) or any(_on_jax(shard) for shard in asked.leaf.variables)
    if asked is not None:
        return asked.kind == "jax"
    return wish.placement is not None and not kept.is_scalar and not _stays_numpy(kept, asked, wish)


def _stays_numpy(kept: Kept, asked: TargetLeaf | None, wish: RestoreRequest) -> bool:
    """Whether it was saved as a numpy array, such as a data iterator's state, and no layout names it."""
    if asked is not None or wish.placement is None or kept.stored is None or not kept.is_numpy:
        return False
    dtype = restored_dtype(kept, asked)
    return not wish.placement.names(kept.name, kept.stored.spec.shape, dtype)


def _jax_keeps(dtype: str | None) -> bool:
    return dtype is None or narrowed_by_jax(numpy_dtype(dtype)) is None


def _on_jax(shard: Any) -> bool:
    place = _place_of(shard)
    return place is not None and not isinstance(place, HostMemory)


def _partition(
    kept: Kept, stored: StoredTensor, asked: TargetLeaf | None, wish: RestoreRequest
) -> Any:
    is_whole = stored.is_key or kept.is_scalar or (asked is not None and asked.kind == "scalar")
    return None if is_whole else wish.partitions.wanted(kept.name, stored.spec.shape)


def _plain(kept: Kept) -> Any:
    return kept.text if kept.text is not None else empty_value(kept.value_type)


def _read(kept: Kept, stored: StoredTensor, wish: RestoreRequest) -> TensorRead:
    asked = _asked(kept, wish)
    dtype = restored_dtype(kept, asked)
    form = _form(kept, stored, dtype, asked, wish)
    return TensorRead(kept.name, stored, dtype, form, kept.saturate)


def _form(
    kept: Kept, stored: StoredTensor, dtype: str, asked: TargetLeaf | None, wish: RestoreRequest
) -> Form:
    shape = stored.spec.shape
    spot = _spot(kept, stored, dtype, asked, wish)
    partition = _partition(kept, stored, asked, wish)
    if partition is not None:
        _refuse_both(kept.name, spot, asked)
        return wish.partitions.form(kept.name, stored, dtype, partition)
    if spot.rows is not None:
        return _by_file(kept.name, stored, dtype, spot.rows, wish.partitions)
    if asked is not None:
        return _form_asked(kept, stored, dtype, asked, spot, wish)
    if kept.key_implementation is not None:
        rank = len(_outer_shape(kept, stored))
        return Key(
            kept.name, kept.key_implementation, _on_devices(kept.name, shape, dtype, spot, rank)
        )
    if kept.is_scalar or wish.placement is None or _stays_numpy(kept, asked, wish):
        return NumpyArray(shape, kept.is_scalar)
    return _on_devices(kept.name, shape, dtype, spot)


def _spot(
    kept: Kept, stored: StoredTensor, dtype: str, asked: TargetLeaf | None, wish: RestoreRequest
) -> Spot:
    """Where the layout puts it, else where ``like`` says."""
    own = None if asked is None or asked.sharding is None else asked.sharding
    is_array = asked is None or asked.kind in ("jax", "key", "shards")
    if wish.placement is not None and is_array and not kept.is_scalar:
        raw_data = asked is not None and asked.kind != "key"
        shape = stored.spec.shape if raw_data else _outer_shape(kept, stored)
        found = wish.placement.spot(kept.name, shape, dtype)
        if found.is_named or own is None:
            return found
    return Spot(None if own is None else real_sharding(own, kept.name))


def _outer_shape(kept: Kept, stored: StoredTensor) -> tuple[int, ...]:
    """The shape that a layout splits: of PRNG keys theirs, not that of their data."""
    if kept.key_implementation is None:
        return stored.spec.shape
    return key_type(stored, kept.key_implementation)[0]


def _refuse_both(name: str, spot: Spot, asked: TargetLeaf | None) -> None:
    if spot.is_named or (asked is not None and asked.is_placed):
        by = "the layout" if spot.is_named else "the sharding in like"
        raise LayoutError(
            f"{name!r} is split both by the partition and by {by}; take it out of one of them"
        )


def _by_file(
    name: str, stored: StoredTensor, dtype: str, rows: tuple[int, int], partitions: Partitions
) -> InShards:
    """Shards as a layout file partitions them; the axis is the file's."""
    axis, shards = rows
    by_file = Partitions((), shards, axis, partitions.strategy, partitions.places)
    return by_file.form(name, stored, dtype, shards)


def _form_asked(
    kept: Kept,
    stored: StoredTensor,
    dtype: str,
    asked: TargetLeaf,
    spot: Spot,
    wish: RestoreRequest,
) -> Form:
    shape = stored.spec.shape
    if asked.kind == "shards":
        if spot.is_named:
            raise LayoutError(
                f"{kept.name!r} is a ShardedVariable in like, but the layout splits it too; take it out of the "
                "layout, or make it a jax.ShapeDtypeStruct in like"
            )
        _refuse_strategy(kept.name, stored, asked.leaf.partition_strategy, wish.partitions)
        return _like(asked.leaf, shape, dtype)
    if asked.kind == "key":
        data = _on_devices(kept.name, shape, dtype, spot, len(asked.shape))
        return Key(kept.name, kept.key_implementation or "", data)
    if asked.kind == "jax":
        return _on_devices(kept.name, shape, dtype, spot)
    return NumpyArray(shape, asked.kind == "scalar")


def _refuse_strategy(
    name: str, stored: StoredTensor, strategy: str, partitions: Partitions
) -> None:
    if recorded_strategy(stored) == "mod" and strategy == "div" and partitions.strategy != "div":
        raise LayoutError(
            f"{name!r} was saved for 'mod' look-up, but like has a ShardedVariable for 'div'; make it one for "
            "'mod', or say partition_strategy='div' to restore its rows in their logical order"
        )


def _like(variable: Any, shape: tuple[int, ...], dtype: str) -> InShards:
    """Shards that hold what those of ``variable`` hold, where they lie."""
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
    name: str, shape: tuple[int, ...], dtype: str, spot: Spot, rank: int | None = None
) -> JaxArray | Uncommitted:
    if spot.sharding is None:
        return Uncommitted(shape, dtype, default_device())
    return jax_array(name, shape, dtype, spot.sharding, rank)
