"""TargetContent: what a conversion writes, made from metadata alone: form, tree, tensors with chunks and encodings, and pieces.

Rules keep, rename and cast the tensors of the source, or a map makes others of them; the layout and the format say how each is cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from reshard.conversion.check_target import CheckedTarget, default_option
from reshard.conversion.lost_metadata import lost_metadata
from reshard.errors import PlanError
from reshard.formats.base import Form, Made, Reader, TargetCheckpoint, TargetTensor, Unarranged
from reshard.formats.codecs import decoder_bytes, encoded_room, encoder_bytes, is_seekable
from reshard.formats.contents import Encoding, Leaf, StoredTensor, codec_name
from reshard.formats.format import Format, refuse_database, refuse_others, unheld
from reshard.formats.known_formats import format_with, known_format
from reshard.formats.leaf_paths import Renamed, renamed_leaves
from reshard.formats.quantized import Quantized
from reshard.formats.registry import mixes_values, target_format
from reshard.formats.slices.kept_metadata import NO_METADATA
from reshard.geometry.grid import Box, Grid
from reshard.geometry.sizes import format_bytes
from reshard.layout.changes import refuse_unstored
from reshard.layout.tensor_spec import TensorSpec
from reshard.maps.mapped import Mapped
from reshard.maps.mapped_checkpoint import leaves_of, mapped_tensors
from reshard.planning.keep_pairs import refuse_cut, refuse_parted
from reshard.planning.piece import Piece
from reshard.planning.planner import COPY_BYTES, WantedPiece
from reshard.planning.plans import Side
from reshard.planning.read_box import Alike, WantedLike
from reshard.planning.rules import Rewrite, made_of, rewrites, tree_digest
from reshard.planning.target_layouts import TensorSplit, keeps_layouts, look_up, split
from reshard.storage.base import ON_DISK, Traits
from reshard.storage.location import locate


class TargetContent(Struct, frozen=True):
    """The content of one target, and the planner's wanted pieces for it.

    Attributes:
        dropped: names of the source's leaves that are left out.
        warnings: facts about the changes that a person should know, one sentence each.
        mapping: the effect of a map on the source; None without one.
    """

    checkpoint: TargetCheckpoint
    wanted_pieces: Sequence[WantedLike]
    dropped: tuple[str, ...]
    warnings: tuple[str, ...]
    mapping: Mapped | None = None


def make_target(
    reader: Reader, target: CheckedTarget, form: Form, traits: Traits = ON_DISK
) -> TargetContent:
    """The target of converting ``reader``'s checkpoint in a place with these traits; pure arithmetic over metadata."""
    refuse_database(form, traits)
    refuse_unstored(target.changes.cast)
    making = _Making(target, form, traits)
    made = _rename(making, reader) if target.given_map is None else _map(making, reader)
    known = known_format(form.format)
    _leave_out_unheld(making, known, reader)
    checkpoint = TargetCheckpoint(
        form.container(reader.container),
        making.tensors,
        making.leaves,
        {
            item.name: str(locate(reader.uri) / item.directory)
            for item in reader.container.items
            if not item.is_tree
        },
        form,
        # Deltas stand for a version of the source, which verify is given.
        made=replace(made, computed={n: o for n, o in reader.computed.items() if n != "deltas"}),
        metadata=reader.metadata,
    )
    refuse_others(known, checkpoint, reader)
    warnings = making.warnings
    if reader.metadata != NO_METADATA or reader.format != form.format:
        warnings += tuple(lost_metadata(reader, checkpoint))
    warnings += tuple(form.warnings(checkpoint, reader))
    return TargetContent(checkpoint, making.wanted_pieces, making.dropped, warnings, making.mapping)


def _rename(making: _Making, reader: Reader) -> Made:
    """Makes each tensor that the rules keep, perhaps under another name and cast."""
    target = making.target
    kept = rewrites(
        target.changes,
        [leaf.name for leaf in reader.leaves],
        {name: t.spec for name, t in reader.tensors.items()},
        {name for name, t in reader.tensors.items() if t.is_key},
    )
    found = _target_leaves(reader, kept, keeps_layouts(target.layout))
    look_up(target.layout, [leaf.name for leaf in found.leaves if leaf.tensor])
    for rewrite, leaf in zip(kept, found.leaves, strict=True):
        if leaf.tensor:
            stored = reader.tensors[rewrite.source]
            kind, tensor = making.add(stored, leaf, rewrite.dtype or stored.spec.dtype)
            piece = Piece.whole(stored.spec, tensor.spec, saturate=rewrite.saturate)
            making.want(piece, stored, kind, tensor)
    _check_growth(reader, target, sum(tensor.spec.nbytes for tensor in making.tensors.values()))
    names = {rewrite.source for rewrite in kept}
    making.dropped = tuple(leaf.name for leaf in reader.leaves if leaf.name not in names)
    making.leaves, making.warnings = found.leaves, found.warnings
    return made_of(reader.tensors, kept, target.changes)


def _map(making: _Making, reader: Reader) -> Made:
    """Makes what the map makes of the checkpoint; PlanError for anything that it leaves open."""
    target, given = making.target, making.target.given_map
    if given is None:
        raise PlanError("no map is given")
    mapping, making.dropped = mapped_tensors(reader, given, target.changes)
    _check_growth(reader, target, sum(made.spec.nbytes for made in mapping.tensors))
    look_up(target.layout, [made.spec.name for made in mapping.tensors])
    making.leaves, making.mapping = list(leaves_of(reader, mapping.tensors)), mapping
    for made, leaf in zip(mapping.tensors, making.leaves, strict=True):
        first = next((p.source for p in made.pieces if p.fill is None), None)
        like = _like(made.spec, None if first is None else reader.tensors[first])
        kind, tensor = making.add(like, leaf, made.spec.dtype)
        for piece in made.pieces:
            stored = like if piece.fill is not None else reader.tensors[piece.source]
            making.want(piece, stored, kind, tensor)
    if mapping.cropped:
        more = ", …" if len(mapping.cropped) > 3 else ""
        some = ", ".join(map(repr, mapping.cropped[:3])) + more
        making.warnings = (f"the map takes only a part of {some} (crop)",)
    return Made(tree_digest(reader.tensors), len(making.tensors), target.changes, by=given.plain)


def _leave_out_unheld(making: _Making, known: Format, reader: Reader) -> None:
    """Leaves out values that the target cannot hold, where they lie beside a model that it holds."""
    leaves = unheld(known, making.leaves) if mixes_values(reader) else ()
    lost = {leaf.name: leaf for leaf in leaves if not leaf.is_object}
    if not lost:
        return
    shown = [f"{name!r} ({leaf.kind})" for name, leaf in list(lost.items())[:_MOST_SHOWN]]
    more = f" and {len(lost) - len(shown):,} more" if len(lost) > len(shown) else ""
    said = (
        f"{known.about.title} files have no place for {', '.join(shown)}{more}; they are left out"
    )
    making.leaves = [leaf for leaf in making.leaves if leaf.name not in lost]
    making.warnings = (*making.warnings, said)


_MOST_SHOWN = 3


_PLACE = frozenset({"sharding", "memory_kind"})
"""Keys of a leaf's metadata that place its tensor, beyond its layout."""


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


def _check_growth(reader: Reader, target: CheckedTarget, nbytes: int) -> None:
    """Raises PlanError if the tensors of a target have more bytes than ``max_growth`` allows."""
    if target.max_growth is None:
        return
    source = sum(tensor.spec.nbytes for tensor in reader.tensors.values())
    if nbytes > int(target.max_growth * source) + FREE_BYTES:
        raise PlanError(
            f"the target would have {format_bytes(nbytes)}, but the source has {format_bytes(source)}, and a target may have at most "
            f"{target.max_growth:g} times as much and {format_bytes(FREE_BYTES)} more (max_growth); make pad, repeated dimensions, fill "
            "and casts smaller, or raise max_growth"
        )


def _like(spec: TensorSpec, source: StoredTensor | None) -> StoredTensor:
    """The target tensor as if it were stored whole, encoded as its source is."""
    whole = replace(spec, storage=Grid.whole(spec.shape))
    if source is None:
        return StoredTensor(whole, Encoding(), bytes(spec.itemsize), may_be_missing=False)
    return StoredTensor(
        whole, source.encoding, bytes(spec.itemsize), may_be_missing=False, is_key=source.is_key
    )


class _Kind(Struct, eq=False, gc=False):
    """Target tensors that differ in their names only.

    Attributes:
        tensor: one of them, as the format arranges it.
        wanted: how their pieces are stored, by the kinds of the sources.
    """

    tensor: TargetTensor
    wanted: dict[int, Alike] = field(default_factory=dict)


class _Making(Struct):
    """The content of a target while it is made.

    A tensor is arranged and described for the planner once a kind: for each it took half the time of a plan (measured).

    Attributes:
        leaves, dropped, warnings, mapping: as in TargetContent.
        sources: a number for each kind of source.
        kinds: by all that decides how the format arranges a tensor.
    """

    target: CheckedTarget
    form: Form
    traits: Traits
    tensors: dict[str, TargetTensor] = field(default_factory=dict)
    wanted_pieces: list[WantedLike] = field(default_factory=list)
    leaves: Sequence[Leaf] = ()
    dropped: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    mapping: Mapped | None = None
    sources: dict[Hashable, int] = field(default_factory=dict)
    kinds: dict[Hashable, _Kind] = field(default_factory=dict)

    def add(self, stored: StoredTensor, leaf: Leaf, dtype: str) -> tuple[_Kind, TargetTensor]:
        """A tensor of the target, of the shape that ``stored`` has, as the format arranges it, and its kind."""
        source = stored.spec
        bare = TensorSpec(leaf.name, source.shape, dtype, Grid.whole(source.shape))
        parts = split(bare, source, self.target.layout)
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


def refuse_parted_weights(
    found: Quantized, reader: Reader, target: CheckedTarget, content: TargetContent
) -> None:
    """Raises PlanError where a target parts quantised weights from their scales, or is newly cut inside their blocks."""
    pieces: dict[str, list[Piece]] = defaultdict(list)
    for wanted in content.wanted_pieces:
        pieces[wanted.piece.target].append(wanted.piece)
    if target.changes or target.given_map is not None:
        specs = {name: tensor.spec for name, tensor in reader.tensors.items()}
        refuse_parted(found, specs, pieces.values())
    for name, of_target in pieces.items():
        source = of_target[0].source
        if source in found.pairs:
            for slices in _new_slices(reader.tensors[source].spec, content, name, target, reader.format):  # fmt: skip
                refuse_cut(found.pairs[source], name, slices)


def _new_slices(
    source: TensorSpec, content: TargetContent, name: str, target: CheckedTarget, before: str
) -> Iterator[Grid | tuple[Box, ...]]:
    """The slices of a tensor that are new to a reader: of a new layout, and of files for slices.

    Chunks do not count: every reader puts the chunks of a tensor together. ``before`` is the format of the source.
    """
    tensor = content.checkpoint.tensors[name]
    if not keeps_layouts(target.layout) and tensor.shards != source.slices:
        yield tensor.shards
    is_new = content.checkpoint.form.format != before
    if tensor.packed is not None and (is_new or tensor.packed != source.slices):
        yield tensor.packed


def form_of(reader: Reader, target: CheckedTarget, traits: Traits = ON_DISK) -> Form:
    """The form of a target of the open source, in a place with these traits.

    Raises PlanError for options of another format, and for options that contradict each other or the source.
    """
    known = target_format(target.to or reader.format)
    refuse_other_options(known, target)
    given = {name: target.format_options[name] for name in known.about.options}
    if traits.in_place:
        return known.form(given, reader)
    one_file = known.about.one_file
    if one_file is not None and not one_file.option:
        raise PlanError(
            f"{known.about.title} targets are single files, which cannot be checked in a bucket before they appear; write the file to a disk, and "
            "copy it from there (target)"
        )
    of_objects = {
        name: option.in_bucket(target.max_memory)
        for name, option in known.about.options.items()
        if option.in_bucket is not None and given[name] == default_option(name)
    }
    return known.form(given | of_objects, reader)


def refuse_other_options(known: Format, target: CheckedTarget) -> None:
    """Raises PlanError for an option, given another value than its default, that the format does not have."""
    for name, value in target.format_options.items():
        if name not in known.about.options and value != default_option(name):
            other = format_with(name).about.title
            raise PlanError(
                f"{name} is an option of {other} targets, but the target's format is {known.about.name}; leave it out ({name}), or "
                f"write {other} (to)"
            )
