"""TargetContent: the tensors and leaves of a target, and what the planner is asked for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from reshard.conversion.check_target import CheckedOptions
from reshard.conversion.growth import check_growth
from reshard.conversion.target_tensors import request_of, target_tensor
from reshard.formats.base import Form, Reader, TargetTensor
from reshard.formats.contents import Leaf
from reshard.formats.leaf_paths import Renamed, renamed_leaves
from reshard.formats.slices.origin import Made
from reshard.maps.mapped import Mapped
from reshard.planning.pairing import made_of
from reshard.planning.piece import Piece
from reshard.planning.planner import Request
from reshard.planning.rules import Rewrite, rewrites
from reshard.planning.target_layouts import keeps_layouts, look_up
from reshard.storage.base import Traits

_PLACE = frozenset({"sharding", "memory_kind"})
"""What a leaf's metadata says of where its tensor lies, beyond its layout."""


class TargetContent(Struct, frozen=True):
    """What is to be written, before the form of the target adds its own.

    Attributes:
        dropped: names of the source's leaves that are left out.
        warnings: what a person should know of the changes, one sentence each.
        made: the record that the conversion leaves.
        mapping: what a map makes of the source; None without one.
    """

    tensors: Mapping[str, TargetTensor]
    leaves: Sequence[Leaf]
    requests: tuple[Request, ...]
    dropped: tuple[str, ...]
    warnings: tuple[str, ...]
    made: Made
    mapping: Mapped | None = None


def renamed_content(
    reader: Reader, options: CheckedOptions, form: Form, traits: Traits
) -> TargetContent:
    """Each tensor that the rules keep, perhaps under another name and cast."""
    kept = rewrites(
        options.changes,
        [leaf.name for leaf in reader.leaves],
        {name: t.spec for name, t in reader.tensors.items()},
        {name for name, t in reader.tensors.items() if t.is_key},
    )
    found = _target_leaves(reader, kept, keeps_layouts(options.layout))
    look_up(options.layout, [leaf.name for leaf in found.leaves if leaf.tensor])
    tensors: dict[str, TargetTensor] = {}
    requests: list[Request] = []
    for rewrite, leaf in zip(kept, found.leaves, strict=True):
        if leaf.tensor:
            stored = reader.tensors[rewrite.source]
            dtype = rewrite.dtype or stored.spec.dtype
            tensor = target_tensor(stored, leaf, dtype, options.layout, form)
            tensors[leaf.name] = tensor
            piece = Piece.whole(stored.spec, tensor.spec, saturate=rewrite.saturate)
            requests.append(request_of(piece, stored, tensor, form, traits))
    check_growth(reader, options, (tensor.spec for tensor in tensors.values()))
    dropped = _dropped(reader, {rewrite.source for rewrite in kept})
    made = made_of(reader.tensors, kept, options.changes)
    return TargetContent(tensors, found.leaves, tuple(requests), dropped, found.warnings, made)


def _dropped(reader: Reader, kept: Collection[str]) -> tuple[str, ...]:
    return tuple(leaf.name for leaf in reader.leaves if leaf.name not in kept)


def _target_leaves(reader: Reader, kept: tuple[Rewrite, ...], keeps_places: bool) -> Renamed:
    """The leaves of the target, in the order of ``kept``; one with a new layout forgets where it lay."""
    names = {r.source: r.target for r in kept}
    found = renamed_leaves(reader.leaves, names, reader.container.naming_items)
    return (
        found if keeps_places else replace(found, leaves=tuple(map(_without_place, found.leaves)))
    )


def _without_place(leaf: Leaf) -> Leaf:
    if not _PLACE & leaf.meta.keys():
        return leaf
    return replace(leaf, meta={k: v for k, v in leaf.meta.items() if k not in _PLACE})
