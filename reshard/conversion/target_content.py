"""TargetContent: the tensors and leaves of a target, which rules or a map make, and the pieces of them that the planner is asked for.

The tensors of a target: their layout, chunks and encoding, and the piece that the planner is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from reshard.conversion.check_target import CheckedOptions
from reshard.errors import PlanError
from reshard.formats.base import Form, Made, Reader, TargetTensor, Unarranged
from reshard.formats.codecs import decoder_bytes, encoded_room, encoder_bytes, is_seekable
from reshard.formats.contents import Encoding, Leaf, StoredTensor, codec_name
from reshard.formats.leaf_paths import Renamed, renamed_leaves
from reshard.geometry.grid import Grid
from reshard.geometry.sizes import format_bytes
from reshard.layout.tensor_spec import TensorSpec
from reshard.maps.mapped import Mapped, MappedTensor
from reshard.maps.mapped_checkpoint import leaves_of, mapped_tensors
from reshard.planning.piece import Piece
from reshard.planning.planner import COPY_BYTES, WantedPiece
from reshard.planning.plans import Side
from reshard.planning.read_box import Alike, WantedLike
from reshard.planning.rules import Rewrite, made_of, rewrites, tree_digest
from reshard.planning.target_layouts import TensorSplit, keeps_layouts, look_up, split
from reshard.storage.base import Traits


def _arranged(
    bare: TensorSpec, stored: StoredTensor, leaf: Leaf, parts: TensorSplit, form: Form
) -> TargetTensor:
    """A tensor of the target, of the shape that ``stored`` has, as the format arranges it."""
    partition, slices = _partition(stored, parts)
    whole = replace(bare, layout=parts.layout)
    tensor = TargetTensor(whole, Encoding(), leaf, partition, slices)
    return form.arrange(Unarranged(tensor, stored, parts.slices))


def _partition(
    stored: StoredTensor, parts: TensorSplit
) -> tuple[Mapping[str, Any] | None, Grid | None]:
    """The partition of a tensor, and its slices where the partition does not give them.

    A "mod" table stays one, however it is split now: a program that reads it as "div" would look up the wrong rows.
    """
    recorded = stored.partition or {}
    if recorded.get("strategy") != "mod":
        return parts.partition, None
    given = parts.partition or {}
    partition = recorded
    if given.get("axis") == recorded.get(
        "axis"
    ):  # the recorded partitioner chose another number of shards
        kept = {key: value for key, value in recorded.items() if key != "partitioner"}
        partition = {**kept, "shards": given["shards"]}
    is_split = parts.layout is not None and not given
    return partition, parts.slices if is_split else Grid.whole(stored.spec.shape)


def demand_of(
    piece: Piece, stored: StoredTensor, tensor: TargetTensor, form: Form, traits: Traits
) -> WantedPiece:
    """The planner's wanted piece for a piece of a tensor; ``stored`` is its source."""
    source, target = stored.spec, tensor.spec
    nbytes = target.chunk_bytes
    how = traits.chunk_writing(
        nbytes, is_shared=tensor.packed is not None, database_bytes=form.put_bytes(nbytes)
    )
    return WantedPiece(
        piece,
        Side(
            source,
            codec_name(stored.encoding),
            is_seekable(stored.encoding),
            decoder_bytes(stored.encoding, source.chunk_bytes),
            encoded_room(stored.encoding, source.chunk_bytes),
            is_distant=stored.encoding.read_ahead_bytes > 0,
        ),
        Side(
            target,
            codec_name(tensor.encoding),
            is_seekable(tensor.encoding) and how.takes_ranges,
            encoder_bytes(tensor.encoding, nbytes) + (how.put_bytes or 0),
            copies=tensor.copies,
            in_order=tensor.packed if how.in_order else None,
            ends_with_chunk=how.ends_with_chunk,
        ),
        COPY_BYTES
        + stored.encoding.read_ahead_bytes
        + _whole_chunk_bytes(stored, tensor, how.put_bytes),
    )


def _whole_chunk_bytes(stored: StoredTensor, tensor: TargetTensor, put_bytes: int | None) -> int:
    """Memory to pass on a chunk that is in memory whole: handed to a database, or not stored.

    A chunk of fill values compresses to nothing, and one of zeros takes no memory before that.
    """
    chunk = tensor.spec.chunk_bytes
    encoder = encoder_bytes(tensor.encoding, chunk)
    if put_bytes is not None:
        return encoder + chunk + put_bytes
    if not stored.may_be_missing:
        return 0
    return encoder if any(stored.fill) else max(0, encoder - chunk)


_PLACE = frozenset({"sharding", "memory_kind"})
"""Keys of a leaf's metadata that place its tensor, beyond its layout."""


class TargetContent(Struct, frozen=True):
    """The content to write, before the form of the target adds its own.

    Attributes:
        dropped: names of the source's leaves that are left out.
        warnings: facts about the changes that a person should know, one sentence each.
        made: the record that the conversion leaves.
        mapping: the effect of a map on the source; None without one.
    """

    tensors: Mapping[str, TargetTensor]
    leaves: Sequence[Leaf]
    wanted_pieces: Sequence[WantedLike]
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
    making = _Making(options, form, traits)
    for rewrite, leaf in zip(kept, found.leaves, strict=True):
        if leaf.tensor:
            stored = reader.tensors[rewrite.source]
            kind, tensor = making.add(stored, leaf, rewrite.dtype or stored.spec.dtype)
            piece = Piece.whole(stored.spec, tensor.spec, saturate=rewrite.saturate)
            making.want(piece, stored, kind, tensor)
    check_growth(reader, options, (tensor.spec for tensor in making.tensors.values()))
    dropped = _dropped(reader, {rewrite.source for rewrite in kept})
    made = made_of(reader.tensors, kept, options.changes)
    return TargetContent(
        making.tensors, found.leaves, making.wanted_pieces, dropped, found.warnings, made
    )


def _dropped(reader: Reader, kept: Collection[str]) -> tuple[str, ...]:
    return tuple(leaf.name for leaf in reader.leaves if leaf.name not in kept)


def _target_leaves(reader: Reader, kept: tuple[Rewrite, ...], keeps_places: bool) -> Renamed:
    """The leaves of the target, in the order of ``kept``; one with a new layout loses its old place."""
    names = {r.source: r.target for r in kept}
    found = renamed_leaves(reader.leaves, names, reader.container.naming_items)
    return (
        found if keeps_places else replace(found, leaves=tuple(map(_without_place, found.leaves)))
    )


def _without_place(leaf: Leaf) -> Leaf:
    if not _PLACE & leaf.meta.keys():
        return leaf
    return replace(leaf, meta={k: v for k, v in leaf.meta.items() if k not in _PLACE})


FREE_BYTES = 1 << 30
"""Growth that is always allowed, so that a small source may become a padded model."""


def check_growth(reader: Reader, options: CheckedOptions, specs: Iterable[TensorSpec]) -> None:
    """Raises PlanError if the tensors of a target have more bytes than ``max_growth`` allows."""
    if options.max_growth is None:
        return
    source = sum(tensor.spec.nbytes for tensor in reader.tensors.values())
    most = int(options.max_growth * source) + FREE_BYTES
    target = sum(spec.nbytes for spec in specs)
    if target > most:
        raise PlanError(
            f"the target would have {format_bytes(target)}, but the source has {format_bytes(source)}, and a target may have at most "
            f"{options.max_growth:g} times as much and {format_bytes(FREE_BYTES)} more (max_growth); make pad, repeated dimensions, fill "
            "and casts smaller, or raise max_growth"
        )


def mapped_content(
    reader: Reader, options: CheckedOptions, form: Form, traits: Traits
) -> TargetContent:
    """The content that the map of the options makes of the checkpoint; PlanError for anything that it leaves open."""
    given = options.given_map
    if given is None:
        raise PlanError("no map is given")
    mapping, dropped = mapped_tensors(reader, given, options.changes)
    check_growth(reader, options, (made.spec for made in mapping.tensors))
    look_up(options.layout, [made.spec.name for made in mapping.tensors])
    making, leaves = _Making(options, form, traits), list(leaves_of(reader, mapping.tensors))
    for made, leaf in zip(mapping.tensors, leaves, strict=True):
        _add_mapped(making, reader, made, leaf)
    return TargetContent(
        making.tensors,
        leaves,
        making.wanted_pieces,
        dropped,
        _warnings(mapping),
        Made(tree_digest(reader.tensors), len(making.tensors), options.changes, by=given.plain),
        mapping,
    )


def _add_mapped(making: _Making, reader: Reader, made: MappedTensor, leaf: Leaf) -> None:
    """Adds a target tensor, with a wanted piece for each of its pieces."""
    first = next((p.source for p in made.pieces if p.fill is None), None)
    like = _like(made.spec, None if first is None else reader.tensors[first])
    kind, tensor = making.add(like, leaf, made.spec.dtype)
    for piece in made.pieces:
        stored = like if piece.fill is not None else reader.tensors[piece.source]
        making.want(piece, stored, kind, tensor)


def _like(spec: TensorSpec, source: StoredTensor | None) -> StoredTensor:
    """The target tensor as if it were stored whole, encoded as its source is."""
    whole = replace(spec, storage=Grid.whole(spec.shape))
    if source is None:
        return StoredTensor(whole, Encoding(), bytes(spec.itemsize), may_be_missing=False)
    return StoredTensor(
        whole, source.encoding, bytes(spec.itemsize), may_be_missing=False, is_key=source.is_key
    )


def _warnings(mapping: Mapped) -> tuple[str, ...]:
    if not mapping.cropped:
        return ()
    some = ", ".join(map(repr, mapping.cropped[:3])) + (", …" if len(mapping.cropped) > 3 else "")
    return (f"the map takes only a part of {some} (crop)",)


class _Kind(Struct, eq=False, gc=False):
    """Target tensors that differ in their names only.

    Attributes:
        tensor: one of them, as the format arranges it.
        wanted: how their pieces are stored, by the kinds of the sources.
    """

    tensor: TargetTensor
    wanted: dict[int, Alike] = field(default_factory=dict)


class _Making(Struct):
    """A target while it is made.

    A tensor is arranged and described for the planner once a kind: for each it took half the time of a plan (measured).

    Attributes:
        sources: a number for each kind of source.
        kinds: by all that decides how the format arranges a tensor.
    """

    options: CheckedOptions
    form: Form
    traits: Traits
    tensors: dict[str, TargetTensor] = field(default_factory=dict)
    wanted_pieces: list[WantedLike] = field(default_factory=list)
    sources: dict[Hashable, int] = field(default_factory=dict)
    kinds: dict[Hashable, _Kind] = field(default_factory=dict)

    def add(self, stored: StoredTensor, leaf: Leaf, dtype: str) -> tuple[_Kind, TargetTensor]:
        """A tensor of the target, of the shape that ``stored`` has, as the format arranges it, and its kind."""
        source = stored.spec
        bare = TensorSpec(leaf.name, source.shape, dtype, Grid.whole(source.shape))
        parts = split(bare, source, self.options.layout)
        key: Hashable = (self._number(stored), dtype, parts.layout, parts.slices.cuts)
        if stored.partition is not None or parts.partition is not None:
            key = leaf.name  # of a kind of its own
        kind = self.kinds.get(key)
        if kind is None:
            kind = self.kinds[key] = _Kind(_arranged(bare, stored, leaf, parts, self.form))
            tensor = kind.tensor
        else:
            like = kind.tensor
            spec, packed = like.spec, like.packed
            spec = TensorSpec(leaf.name, spec.shape, dtype, spec.storage, spec.chunk_shape, spec.layout)  # fmt: skip
            tensor = TargetTensor(spec, like.encoding, leaf, None, like.slices, like.copies, packed)
        self.tensors[leaf.name] = tensor
        return kind, tensor

    def want(self, piece: Piece, stored: StoredTensor, kind: _Kind, tensor: TargetTensor) -> None:
        """Adds a wanted piece for a piece of a tensor; ``stored`` is its source."""
        number = self._number(stored)
        alike = kind.wanted.get(number)
        if alike is None:
            wanted = demand_of(piece, stored, tensor, self.form, self.traits)
            alike = kind.wanted[number] = Alike(wanted, wanted.sides)
        self.wanted_pieces.append(WantedLike(piece, stored.spec, tensor.spec, alike))

    def _number(self, stored: StoredTensor) -> int:
        """The number of a kind of source: one for tensors that differ in names, places and checksums only."""
        spec = stored.spec
        kind = (
            spec.shape,
            spec.dtype,
            spec.storage.cuts,
            spec.chunk_shape,
            spec.layout,
            stored.encoding,
            stored.fill,
            stored.may_be_missing,
            stored.is_key,
        )
        return self.sources.setdefault(kind, len(self.sources))
