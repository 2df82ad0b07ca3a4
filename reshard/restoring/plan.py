"""Plans a restore: the tensors to read, and the output of each: numpy, jax in shards, a ShardedVariable or PRNG keys. No tensor is read.

``like``, the layout and the partition choose the output. A layout that names the tensor wins over the sharding in ``like``; a
partition excludes both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import FormatError, LayoutError
from reshard.formats.base import Reader
from reshard.formats.contents import StoredTensor
from reshard.formats.leaf_paths import renamed_leaves
from reshard.formats.quantized import CODES, find_pairs
from reshard.geometry.dtypes import PACKED, narrowed_by_jax, numpy_dtype, packed_text
from reshard.layout.changes import Changes
from reshard.layout.prefixes import pattern_hint
from reshard.maps.mapped import Mapped
from reshard.maps.mapped_checkpoint import in_dtype
from reshard.planning.keep_pairs import refuse_parted
from reshard.planning.piece import Piece
from reshard.planning.rules import rewrites
from reshard.restoring.mapped import mapped_leaves
from reshard.restoring.match import (
    Mismatches,
    SourceLeaf,
    WantedDtype,
    cast_lines,
    check_fit,
    check_for_jax,
    has_jax,
    key_type,
    layout_hint,
    restored_dtype,
    target_hint,
    wanted_dtype,
)
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
from reshard.restoring.request import Partitions, RestoreRequest, in_shards, recorded_strategy
from reshard.restoring.shardings import Shardings, TensorSharding, ToShard, real_sharding
from reshard.restoring.target_tree import TargetLeaf, TargetTree, empty_value
from reshard.restoring.tensor_read import TensorRead
from reshard.variables.sharded.shards import are_numpy


class RestorePlan(Struct, frozen=True):
    """The plan of a restore.

    Attributes:
        leaves: leaves of the checkpoint that the rules keep, in its order.
        values: the values of leaves that are not tensors, and of those taken from ``like``.
        mapping: the map that makes the tensors; None where they are those of the checkpoint.
    """

    leaves: tuple[SourceLeaf, ...]
    reads: tuple[TensorRead, ...]
    values: Mapping[str, Any]
    mapping: Mapped | None = None

    @property
    def computed(self) -> set[str]:
        """The tensors that a map casts, or makes by arithmetic."""
        made = () if self.mapping is None else self.mapping.tensors
        return {m.spec.name for m in made if any(piece.is_computed for piece in m.pieces)}


def plan_restore(reader: Reader, request: RestoreRequest) -> RestorePlan:
    """The tensors to read, and the output of each.

    Raises one TreeError for everything that does not fit, PlanError for rules that make no sense,
    LayoutError, naming the tensor, for a layout or partition that cannot split it.
    """
    if request.given_map is None:
        leaves, mapping = _source_leaves(reader, request.changes), None
    else:
        leaves, mapping = mapped_leaves(reader, request.given_map, request.changes)
    wanted = [
        f for f in leaves if request.like is None or (f.has_data and f.name in request.targets)
    ]
    if request.shardings is not None:
        request.shardings.look_up([f.name for f in wanted if f.stored is not None])
    _refuse_packed(wanted)
    _refuse_objects(wanted)
    _check(reader, leaves, wanted, request)
    values = _values(wanted, request)
    reads = tuple([_read(f, f.stored, request) for f in wanted if f.stored is not None])
    specs = {name: stored.spec for name, stored in reader.tensors.items()}
    if any(spec.dtype in CODES for spec in specs.values()):
        refuse_parted(find_pairs(specs), specs, _pieces(reads, mapping), in_memory=True)
    return RestorePlan(leaves, reads, values, mapping)


def _pieces(reads: Sequence[TensorRead], mapping: Mapped | None) -> Iterator[Sequence[Piece]]:
    """The pieces of each tensor, in the dtype in which it is restored."""
    made = {} if mapping is None else {tensor.spec.name: tensor for tensor in mapping.tensors}
    for read in reads:
        if mapping is not None:
            yield in_dtype(made[read.name], read.dtype).pieces
        else:
            spec = read.stored.spec
            yield (Piece.whole(spec, replace(spec, dtype=read.dtype)),)


def _values(wanted: Sequence[SourceLeaf], request: RestoreRequest) -> dict[str, Any]:
    """The values of leaves without data, and those of ``like`` that the checkpoint does not have."""
    values = {
        f.name: empty_value(f.leaf.value_type) if f.leaf.text is None else f.leaf.text
        for f in wanted
        if f.stored is None
    }
    if request.like is not None:
        names = {f.name for f in wanted}
        values |= {n: target.leaf for n, target in request.targets.items() if n not in names}
    return values


def _source_leaves(reader: Reader, changes: Changes) -> tuple[SourceLeaf, ...]:
    if changes == Changes():
        tensors = reader.tensors
        return tuple([SourceLeaf(e.name, e, tensors.get(e.name)) for e in reader.leaves])
    specs = {name: stored.spec for name, stored in reader.tensors.items()}
    keys = [name for name, stored in reader.tensors.items() if stored.is_key]
    items = reader.container.naming_items
    kept = rewrites(changes, [leaf.name for leaf in reader.leaves], specs, keys)
    leaves = renamed_leaves(reader.leaves, {r.source: r.target for r in kept}, items).leaves
    return tuple(
        SourceLeaf(r.target, leaf, reader.tensors.get(r.source), r.dtype, r.saturate)
        for r, leaf in zip(kept, leaves, strict=True)
    )


def _refuse_packed(wanted: Sequence[SourceLeaf]) -> None:
    """Raises FormatError for several values in a byte, for which neither numpy nor jax has an element type."""
    packed = [f for f in wanted if f.stored is not None and f.stored.spec.dtype in PACKED]
    if packed and packed[0].stored is not None:
        dtype, more = (
            packed[0].stored.spec.dtype,
            f" and {len(packed) - 1} more" if packed[1:] else "",
        )
        raise FormatError(
            f"{packed[0].name!r}{more} is {dtype}, {packed_text(dtype)}, for which numpy and jax have no type; leave it out (drop)"
        )


def _refuse_objects(wanted: Sequence[SourceLeaf]) -> None:
    """Raises FormatError for a value that was not opened: it would be None."""
    objects = [f for f in wanted if f.stored is None and f.leaf.is_object]
    if objects:
        more = f" and {len(objects) - 1} more" if objects[1:] else ""
        raise FormatError(
            f"{objects[0].name!r} ({objects[0].leaf.kind}){more} is not restored: such values are not read; leave them out (drop)"
        )


def _read(leaf: SourceLeaf, stored: StoredTensor, request: RestoreRequest) -> TensorRead:
    target = request.targets.get(leaf.name)
    dtype = restored_dtype(leaf, target)
    output = _output(leaf, stored, dtype, target, request)
    into = target.leaf if target is not None and target.kind == "given" else None
    return TensorRead(leaf.name, stored, dtype, output, leaf.saturate, into)


def _check(
    reader: Reader,
    leaves: Sequence[SourceLeaf],
    wanted: Sequence[SourceLeaf],
    request: RestoreRequest,
) -> None:
    found = Mismatches(reader.uri)
    if request.like is not None:
        _check_names(leaves, request.like, request, found, reader.container.naming_items)
    of_jax = [f.stored is not None and _becomes_jax(f, f.stored, request) for f in wanted]
    dtypes = [
        _check_leaf(leaf, is_jax, request, found)
        for leaf, is_jax in zip(wanted, of_jax, strict=True)
    ]
    for line, count in cast_lines([dtype for dtype in dtypes if dtype is not None]):
        found.add("dtype", line, count)
    stored = [f.name for f in wanted if f.stored is not None]
    if request.shardings is not None:
        placed = [f.name for f, is_jax in zip(wanted, of_jax, strict=True) if is_jax]
        _check_shardings(request.shardings, placed, stored, found)
    found.refuse()
    if request.partitions.rules:
        _refuse_idle(request.partitions, stored)


def _check_leaf(
    leaf: SourceLeaf, is_jax: bool, request: RestoreRequest, found: Mismatches
) -> WantedDtype | None:
    """Adds mismatches; returns the dtype that the tensor must get, None where a rule casts it or it has none.

    ``is_jax``: it becomes a jax array, or several.
    """
    target = request.targets.get(leaf.name)
    if target is not None:
        check_fit(leaf, target, found)
    if is_jax:
        check_for_jax(leaf, target, found)
    if leaf.stored is None or leaf.cast is not None or leaf.stored.is_key:
        return None
    return wanted_dtype(leaf, leaf.stored, target, is_jax)


def _check_names(
    leaves: Sequence[SourceLeaf],
    like: TargetTree,
    request: RestoreRequest,
    found: Mismatches,
    items: Sequence[str],
) -> None:
    stored = {f.name: f for f in leaves}
    if stored.keys().isdisjoint(like.leaves):
        found.hint(target_hint(like.leaves, [f.name for f in leaves], items))
    if request.missing == "error":
        for name, target in like.leaves.items():
            leaf = stored.get(name)
            if leaf is None or not leaf.has_data:
                found.add("missing", _missing(name, target, leaf))
    if request.unexpected == "error":
        for leaf in leaves:
            if leaf.has_data and leaf.name not in like.leaves:
                found.add("unexpected", f"{leaf.name} ({leaf.what})")


def _missing(name: str, target: TargetLeaf, leaf: SourceLeaf | None) -> str:
    is_plain = target.kind in ("string", "scalar")
    instead = "" if leaf is None else f", where the checkpoint has {leaf.what}"
    return f"{name or '(the whole tree)'}{'' if is_plain else f' ({target.what})'}{instead}"


def _check_shardings(
    shardings: Shardings, placed: Sequence[str], stored: Sequence[str], found: Mismatches
) -> None:
    """Adds mismatches of a layout with the names of tensors that become jax arrays (``placed``), and of all tensors."""
    lacking, idle = shardings.lacking(placed), shardings.idle(stored)
    for name in lacking:
        found.add("unplaced", name)
    for name in idle:
        found.add("idle", name or "(the whole tree)")
    if len(lacking) == len(placed):
        found.hint(layout_hint(idle, stored))


def _refuse_idle(partitions: Partitions, names: Sequence[str]) -> None:
    idle = partitions.idle(names)
    if idle:
        some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        raise LayoutError(
            f"partition {idle[0]!r} matches none of the {len(names)} tensors ({some})"
            f"{pattern_hint(re.compile(idle[0]), names)}; correct or remove it"
        )


def _becomes_jax(leaf: SourceLeaf, stored: StoredTensor, request: RestoreRequest) -> bool:
    """True if the tensor becomes a jax array, or several."""
    if stored.is_key:
        return False  # the data of keys is uint32, which jax does not narrow
    target = request.targets.get(leaf.name)
    if _partition(leaf, stored, target, request) is not None:
        return bool(request.partitions.places) or _jax_keeps(restored_dtype(leaf, target))
    if target is None:
        is_whole = request.shardings is None or leaf.is_scalar
        return not (is_whole or _stays_numpy(leaf, stored, request))
    if target.kind == "shards":
        return _jax_keeps(target.dtype) or any(map(_on_jax, target.leaf.variables))
    return target.kind == "jax"


def _output(
    leaf: SourceLeaf,
    stored: StoredTensor,
    dtype: str,
    target: TargetLeaf | None,
    request: RestoreRequest,
) -> RestoredOutput:
    """The output of a tensor; LayoutError, naming it, if its layout or partition cannot split it."""
    shape = stored.spec.shape
    sharding = _sharding(leaf, stored, dtype, target, request)
    partition = _partition(leaf, stored, target, request)
    if partition is not None:
        _refuse_both(leaf.name, sharding, target)
        return request.partitions.output(leaf.name, stored, dtype, partition)
    if sharding.rows is not None:
        return _partitioned_by_file(leaf.name, stored, dtype, sharding.rows, request.partitions)
    if target is not None:
        return _like_target(leaf, stored, dtype, target, sharding, request.partitions)
    if stored.is_key and leaf.key_implementation is not None and has_jax():  # else their data
        rank = len(_outer_shape(leaf, stored))
        data = _on_devices(leaf.name, shape, dtype, sharding, rank)
        return Key(leaf.name, leaf.key_implementation, data)
    is_scalar = leaf.is_scalar
    if is_scalar or request.shardings is None or _stays_numpy(leaf, stored, request):
        return NumpyArray(shape, is_scalar)
    return _on_devices(leaf.name, shape, dtype, sharding)


def _stays_numpy(leaf: SourceLeaf, stored: StoredTensor, request: RestoreRequest) -> bool:
    """True for a tensor without a leaf of ``like`` that was saved as a numpy array, such as a data iterator's state, and that no layout names."""
    if request.shardings is None or not leaf.is_numpy:
        return False
    dtype = leaf.cast or stored.spec.dtype
    return not request.shardings.names(_to_shard(leaf, stored, stored.spec.shape, dtype))


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
    partitions = request.partitions
    if partitions.for_all is None and not partitions.rules:
        return None
    is_whole = stored.is_key or leaf.is_scalar or (target is not None and target.kind == "scalar")
    return None if is_whole else partitions.partition_of(leaf.name, stored.spec.shape)


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
        is_data = not stored.is_key or (target is not None and target.kind != "key")
        shape = stored.spec.shape if is_data else _outer_shape(leaf, stored)
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
