"""TargetPlan: the form, tensors, chunks, encodings and tree that a conversion will write."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.conversion.check_target import CheckedOptions, parsed_options
from reshard.conversion.options import Target
from reshard.conversion.plan import MultiConversionPlan
from reshard.engine.limits import Limits
from reshard.errors import PlanError
from reshard.formats.base import Form, Reader, TargetCheckpoint, TargetTensor
from reshard.formats.codecs import decoder_bytes, encoded_room, encoder_bytes, is_seekable
from reshard.formats.compression import codec_name
from reshard.formats.contents import Encoding, Leaf, StoredTensor
from reshard.formats.format import Format, refuse_database, refuse_others
from reshard.formats.leaf_paths import Renamed, renamed_leaves
from reshard.formats.registry import format_with, known_format
from reshard.geometry.grid import Grid
from reshard.layout.changes import refuse_unstored
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.pairing import made_of
from reshard.planning.piece import Piece
from reshard.planning.planner import COPY_BYTES, Request
from reshard.planning.rules import Rewrite, rewrites
from reshard.planning.target_layouts import TensorSplit, keeps_layouts, look_up, split
from reshard.planning.tensor_plan import Side
from reshard.storage.base import ON_DISK, Traits
from reshard.storage.location import locate
from reshard.storage.target import memory_of_put

_PLACE = frozenset({"sharding", "memory_kind"})
"""What a leaf's metadata says of where its tensor lies, beyond its layout."""


class TargetPlan(Struct, frozen=True):
    """What is to be written, and a request to the planner per tensor.

    Attributes:
        traits: of the place where it will be.
        dropped: names of the source's leaves that are left out.
        warnings: what a person should know of the changes, one sentence each.
    """

    checkpoint: TargetCheckpoint
    requests: tuple[Request, ...]
    dropped: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    traits: Traits = ON_DISK


class Planned(Struct, frozen=True):
    """The open source, and for each target what will be written.

    Attributes:
        checkpoints: what the format of each target must know.
        by_hosts: whether tasks run in processes of an executor that was given, perhaps on other hosts.
    """

    reader: Reader
    checkpoints: tuple[TargetCheckpoint, ...]
    summary: MultiConversionPlan
    by_hosts: bool = False

    def limits(self, executor: Executor | None) -> Limits:
        """The memory that metadata leaves for buffers, and the workers."""
        return Limits(self.summary.total.max_memory, self.summary.total.workers, executor)


def make_target(
    reader: Reader,
    options: CheckedOptions,
    form: Form,
    traits: Traits = ON_DISK,
) -> TargetPlan:
    """The target of converting ``reader``'s checkpoint in a place with these traits; pure arithmetic over metadata."""
    refuse_database(form, traits)
    refuse_unstored(options.changes.cast)
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
            tensor = _target_tensor(stored, leaf, rewrite, options, form)
            tensors[leaf.name] = tensor
            request = _request(stored, tensor, form, traits)
            requests.append(_saturating(request) if rewrite.saturate else request)
    checkpoint = TargetCheckpoint(
        form.container(reader.container),
        tensors,
        found.leaves,
        _copied(reader),
        form,
        made=made_of(reader.tensors, kept, options.changes),
    )
    known = known_format(form.format)
    refuse_others(known, checkpoint, reader)
    kept_names = {rewrite.source for rewrite in kept}
    dropped = tuple(leaf.name for leaf in reader.leaves if leaf.name not in kept_names)
    warnings = (*found.warnings, *known.warnings(checkpoint))
    return TargetPlan(checkpoint, tuple(requests), dropped, warnings, traits)


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


def _copied(reader: Reader) -> dict[str, str]:
    root = locate(reader.uri)
    return {i.name: str(root / i.directory) for i in reader.container.items if not i.is_tree}


def _target_tensor(
    stored: StoredTensor, leaf: Leaf, rewrite: Rewrite, options: CheckedOptions, form: Form
) -> TargetTensor:
    source = stored.spec
    dtype = rewrite.dtype or source.dtype
    bare = TensorSpec(leaf.name, source.shape, dtype, Grid.whole(source.shape))
    parts = split(bare, source, options.layout)
    partition, slices = _partition(stored, parts)
    whole = replace(bare, layout=parts.layout)
    tensor = TargetTensor(whole, Encoding(), leaf, partition, slices)
    return known_format(form.format).arrange(form, tensor, stored, parts.slices)


def _partition(
    stored: StoredTensor, parts: TensorSplit
) -> tuple[Mapping[str, Any] | None, Grid | None]:
    """How it is partitioned, and its slices where the partition does not say them.

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


def _saturating(request: Request) -> Request:
    return replace(request, piece=replace(request.piece, saturate=True))


def _request(stored: StoredTensor, tensor: TargetTensor, form: Form, traits: Traits) -> Request:
    """What the planner is asked."""
    source, target = stored.spec, tensor.spec
    in_order = tensor.packed if traits.by_one_task else None
    put_bytes = memory_of_put(traits, target.chunk_bytes, in_parts=in_order is not None)
    if put_bytes is None:
        put_bytes = form.put_bytes(target.chunk_bytes)
    return Request(
        Piece.whole(source, target),
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
            is_seekable(tensor.encoding) and put_bytes is None and not traits.by_one_task,
            encoder_bytes(tensor.encoding, target.chunk_bytes) + (put_bytes or 0),
            copies=tensor.copies,
            in_order=in_order,
            ends_with_chunk=put_bytes is None or (not traits.in_place and in_order is None),
        ),
        COPY_BYTES
        + stored.encoding.read_ahead_bytes
        + _whole_chunk_bytes(stored, tensor, put_bytes),
    )


def _whole_chunk_bytes(stored: StoredTensor, tensor: TargetTensor, put_bytes: int | None) -> int:
    """What passing on a chunk takes where it is in memory whole: handed to a database, or not stored.

    A chunk of fill values compresses to nothing, and one of zeros takes no memory before that.
    """
    chunk = tensor.spec.chunk_bytes
    encoder = encoder_bytes(tensor.encoding, chunk)
    if put_bytes is not None:
        return encoder + chunk + put_bytes
    if not stored.may_be_missing:
        return 0
    return encoder if any(stored.fill) else max(0, encoder - chunk)


def form_of(reader: Reader, options: CheckedOptions, traits: Traits = ON_DISK) -> Form:
    """The form of a target of the open source, in a place with these traits.

    Raises PlanError for options of another format, and for options that contradict each other or the source.
    """
    known = known_format(options.to or reader.format)
    refuse_other_options(known, options)
    given = {name: options.format_options[name] for name in known.about.options}
    if not traits.in_place:
        given |= _of_objects(known, options, given)
    return known.form(given, reader)


def _of_objects(known: Format, options: CheckedOptions, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are others by default where chunks are put as objects."""
    defaults = parsed_options(Target(""))
    return {
        name: option.in_bucket(options.max_memory)
        for name, option in known.about.options.items()
        if option.in_bucket is not None and given[name] == defaults[name]
    }


def refuse_other_options(known: Format, options: CheckedOptions) -> None:
    """Raises PlanError for an option, given another value than its default, that the format does not have."""
    defaults = parsed_options(Target(""))
    for name, value in options.format_options.items():
        if name not in known.about.options and value != defaults[name]:
            other = format_with(name).about.title
            raise PlanError(
                f"{name} is an option of {other} targets, but the target's format is {known.about.name}; leave it out ({name}), or "
                f"write {other} (to)"
            )
