"""Plans a restore: the tensors to read, and the output of each. No tensor is read."""

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
from reshard.formats.quantized import find_pairs
from reshard.geometry.dtypes import PACKED, packed_text
from reshard.layout.changes import Changes
from reshard.layout.prefixes import pattern_hint
from reshard.maps.mapped import Mapped
from reshard.maps.mapped_checkpoint import in_dtype
from reshard.planning.keep_pairs import refuse_parted
from reshard.planning.piece import Piece
from reshard.planning.rules import rewrites
from reshard.restoring.choose_output import becomes_jax, choose_output, target_leaf
from reshard.restoring.mapped import mapped_leaves
from reshard.restoring.match import (
    Mismatches,
    SourceLeaf,
    WantedDtype,
    cast_lines,
    check_fit,
    check_for_jax,
    layout_hint,
    restored_dtype,
    target_hint,
    wanted_dtype,
)
from reshard.restoring.partitions import Partitions
from reshard.restoring.request import RestoreRequest
from reshard.restoring.shardings import Shardings
from reshard.restoring.target_tree import TargetLeaf, TargetTree, empty_value
from reshard.restoring.tensor_read import TensorRead


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
        f for f in leaves if request.like is None or (f.has_data and f.name in request.like.leaves)
    ]
    if request.shardings is not None:
        request.shardings.look_up([f.name for f in wanted if f.stored is not None])
    _refuse_packed(wanted)
    _refuse_objects(wanted)
    _check(reader, leaves, wanted, request)
    values = _values(wanted, request)
    reads = tuple(_read(f, f.stored, request) for f in wanted if f.stored is not None)
    specs = {name: stored.spec for name, stored in reader.tensors.items()}
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
        f.name: empty_value(f.value_type) if f.text is None else f.text
        for f in wanted
        if f.stored is None
    }
    if request.like is not None:
        names = {f.name for f in wanted}
        values |= {n: target.leaf for n, target in request.like.leaves.items() if n not in names}
    return values


def _source_leaves(reader: Reader, changes: Changes) -> tuple[SourceLeaf, ...]:
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
    target = target_leaf(leaf, request)
    dtype = restored_dtype(leaf, target)
    output = choose_output(leaf, stored, dtype, request)
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
    dtypes = [_check_leaf(leaf, request, found) for leaf in wanted]
    for line, count in cast_lines([dtype for dtype in dtypes if dtype is not None]):
        found.add("dtype", line, count)
    if request.shardings is not None:
        _check_shardings(wanted, request, request.shardings, found)
    found.refuse()
    _refuse_idle(request.partitions, [f.name for f in wanted if f.stored is not None])


def _check_leaf(leaf: SourceLeaf, request: RestoreRequest, found: Mismatches) -> WantedDtype | None:
    """Adds mismatches; returns the dtype that the tensor must get, None where a rule casts it or it has none."""
    target = target_leaf(leaf, request)
    if target is not None:
        check_fit(leaf, target, found)
    is_jax = leaf.stored is not None and becomes_jax(leaf, target, request)
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
    wanted: Sequence[SourceLeaf],
    request: RestoreRequest,
    shardings: Shardings,
    found: Mismatches,
) -> None:
    names = [
        f.name for f in wanted if f.stored and becomes_jax(f, target_leaf(f, request), request)
    ]
    for name in shardings.lacking(names):
        found.add("unplaced", name)
    stored = [f.name for f in wanted if f.stored]
    idle = shardings.idle(stored)
    for name in idle:
        found.add("idle", name or "(the whole tree)")
    if len(shardings.lacking(names)) == len(names):
        found.hint(layout_hint(idle, stored))


def _refuse_idle(partitions: Partitions, names: Sequence[str]) -> None:
    idle = partitions.idle(names)
    if idle:
        some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        raise LayoutError(
            f"partition {idle[0]!r} matches none of the {len(names)} tensors ({some})"
            f"{pattern_hint(re.compile(idle[0]), names)}; correct or remove it"
        )
