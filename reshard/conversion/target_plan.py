"""TargetPlan: the form, tensors, chunks, encodings and tree that a conversion will write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor

from msgspec import Struct
from msgspec.structs import replace

from reshard.conversion.check_target import CheckedOptions, default_option
from reshard.conversion.known_identity import KnownIdentity
from reshard.conversion.lost_metadata import lost_metadata
from reshard.conversion.plan import JointPlan
from reshard.conversion.target_content import TargetContent, mapped_content, renamed_content
from reshard.engine.limits import Limits
from reshard.errors import PlanError
from reshard.formats.base import Form, Reader, TargetCheckpoint
from reshard.formats.format import Format, refuse_database, refuse_others, unheld
from reshard.formats.known_formats import format_with, known_format
from reshard.formats.quantized import Quantized
from reshard.formats.registry import mixes_values, target_format
from reshard.geometry.grid import Box, Grid
from reshard.layout.changes import refuse_unstored
from reshard.layout.tensor_spec import TensorSpec
from reshard.maps.mapped import Mapped
from reshard.planning.keep_pairs import refuse_cut, refuse_parted
from reshard.planning.piece import Piece
from reshard.planning.read_box import WantedLike
from reshard.planning.target_layouts import keeps_layouts
from reshard.storage.base import ON_DISK, Traits
from reshard.storage.location import locate


class TargetPlan(Struct, frozen=True):
    """The content of one target, and the planner's wanted pieces for it.

    Attributes:
        traits: of the place where it will be.
        dropped: names of the source's leaves that are left out.
        warnings: facts about the changes that a person should know, one sentence each.
        mapping: the effect of a map on the source; None without one.
    """

    checkpoint: TargetCheckpoint
    wanted_pieces: Sequence[WantedLike]
    dropped: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    traits: Traits = ON_DISK
    mapping: Mapped | None = None


class Planned(Struct, frozen=True):
    """The open source, and the plan of each target.

    Attributes:
        checkpoints: the content of each target, for its format.
        by_hosts: true if tasks run in processes of an executor that was given, perhaps on other hosts.
        equal: for each target, pairs of source tensors that its map says are equal.
        weights: for each target, the plan for the identity of its weights.
    """

    reader: Reader
    checkpoints: tuple[TargetCheckpoint, ...]
    summary: JointPlan
    by_hosts: bool = False
    equal: tuple[tuple[tuple[str, str], ...], ...] = ((),)
    weights: tuple[KnownIdentity, ...] = (KnownIdentity(),)

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
    make = renamed_content if options.given_map is None else mapped_content
    known = known_format(form.format)
    content = _held(make(reader, options, form, traits), known, reader)
    checkpoint = TargetCheckpoint(
        form.container(reader.container),
        content.tensors,
        content.leaves,
        _copied(reader),
        form,
        made=content.made,
        metadata=reader.metadata,
    )
    refuse_others(known, checkpoint, reader)
    warnings = (
        *content.warnings,
        *lost_metadata(reader, checkpoint),
        *form.warnings(checkpoint, reader),
    )
    return TargetPlan(
        checkpoint, content.wanted_pieces, content.dropped, warnings, traits, content.mapping
    )


def refuse_parted_weights(
    found: Quantized | None, reader: Reader, options: CheckedOptions, target: TargetPlan
) -> None:
    """Raises PlanError where a target parts quantised weights from their scales, or is newly cut inside their blocks."""
    if found is None:
        return
    pieces: dict[str, list[Piece]] = defaultdict(list)
    for wanted in target.wanted_pieces:
        pieces[wanted.piece.target].append(wanted.piece)
    if options.changes or options.given_map is not None:
        specs = {name: tensor.spec for name, tensor in reader.tensors.items()}
        refuse_parted(found, specs, pieces.values())
    for name, of_target in pieces.items():
        source = of_target[0].source
        if source in found.pairs:
            for slices in _new_slices(reader.tensors[source].spec, target, name, options, reader.format):  # fmt: skip
                refuse_cut(found.pairs[source], name, slices)


def _new_slices(
    source: TensorSpec, target: TargetPlan, name: str, options: CheckedOptions, before: str
) -> Iterator[Grid | tuple[Box, ...]]:
    """The slices of a tensor that are new to a reader: of a new layout, and of files for slices.

    Chunks do not count: every reader puts the chunks of a tensor together. ``before`` is the format of the source.
    """
    tensor = target.checkpoint.tensors[name]
    if not keeps_layouts(options.layout) and tensor.shards != source.slices:
        yield tensor.shards
    is_new = target.checkpoint.form.format != before
    if tensor.packed is not None and (is_new or tensor.packed != source.slices):
        yield tensor.packed


def _held(content: TargetContent, known: Format, reader: Reader) -> TargetContent:
    """The content without values that the target cannot hold, where they lie beside a model that it holds."""
    leaves = unheld(known, content.leaves) if mixes_values(reader) else ()
    lost = {leaf.name: leaf for leaf in leaves if not leaf.is_object}
    if not lost:
        return content
    shown = [f"{name!r} ({leaf.kind})" for name, leaf in list(lost.items())[:_MOST_SHOWN]]
    more = f" and {len(lost) - len(shown):,} more" if len(lost) > len(shown) else ""
    said = (
        f"{known.about.title} files have no place for {', '.join(shown)}{more}; they are left out"
    )
    return replace(
        content,
        leaves=[leaf for leaf in content.leaves if leaf.name not in lost],
        warnings=(*content.warnings, said),
    )


_MOST_SHOWN = 3


def _copied(reader: Reader) -> dict[str, str]:
    root = locate(reader.uri)
    return {i.name: str(root / i.directory) for i in reader.container.items if not i.is_tree}


def form_of(reader: Reader, options: CheckedOptions, traits: Traits = ON_DISK) -> Form:
    """The form of a target of the open source, in a place with these traits.

    Raises PlanError for options of another format, and for options that contradict each other or the source.
    """
    known = target_format(options.to or reader.format)
    refuse_other_options(known, options)
    given = {name: options.format_options[name] for name in known.about.options}
    if traits.in_place:
        return known.form(given, reader)
    one_file = known.about.one_file
    if one_file is not None and not one_file.option:
        raise PlanError(
            f"{known.about.title} targets are single files, which cannot be checked in a bucket before they appear; write the file to a disk, and "
            "copy it from there (target)"
        )
    of_objects = {
        name: option.in_bucket(options.max_memory)
        for name, option in known.about.options.items()
        if option.in_bucket is not None and given[name] == default_option(name)
    }
    return known.form(given | of_objects, reader)


def refuse_other_options(known: Format, options: CheckedOptions) -> None:
    """Raises PlanError for an option, given another value than its default, that the format does not have."""
    for name, value in options.format_options.items():
        if name not in known.about.options and value != default_option(name):
            other = format_with(name).about.title
            raise PlanError(
                f"{name} is an option of {other} targets, but the target's format is {known.about.name}; leave it out ({name}), or "
                f"write {other} (to)"
            )
