"""TargetPlan: one target as it is planned. JointPlan: those of all targets, with the open source.

Makes the plan of a conversion: opens its source, plans for each target, and refuses what can be refused before a byte moves.
``planning/`` decides from metadata alone what must move; this module asks the stores.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor

from msgspec import Struct
from msgspec.structs import replace

from reshard.answers.record import making_many
from reshard.arithmetic.asked import quantized_text
from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.conversion_key import ConversionKey, plan_digest
from reshard.conversion.plan import (
    ConversionPlan,
    MapSummary,
    MultiConversionPlan,
    PlanTotals,
    priced,
)
from reshard.conversion.planned_tensor import planned_tensors
from reshard.conversion.run import Feature, features_of, features_of_run
from reshard.conversion.target_content import (
    TargetContent,
    form_of,
    make_target,
    refuse_parted_weights,
)
from reshard.engine.error_context import about_target
from reshard.engine.limits import Limits
from reshard.engine.metadata_budget import BYTES_PER_DEVICE_ID, BYTES_PER_TENSOR, open_to_convert
from reshard.engine.output import TargetOutput
from reshard.engine.part_units import Widest, widest
from reshard.formats.base import Form, Reader, TargetCheckpoint
from reshard.formats.contents import Stored
from reshard.formats.known_formats import named_options
from reshard.formats.lacks import (
    check_missing,
    missing_warnings,
    numbers,
    read_as,
    record_warnings,
    unprotected,
)
from reshard.formats.quantized import CODES, Quantized, bare_warnings, quantization
from reshard.formats.registry import CheckpointPath, refuse_other_content
from reshard.planning.asked_fills import AskedFills
from reshard.planning.estimates import RequestPlan
from reshard.planning.planner import plan_fills
from reshard.planning.plans import MultiPlan, Plan
from reshard.planning.target_layouts import layout_warnings
from reshard.planning.task_cost import plan_with_processes
from reshard.storage.base import Requests
from reshard.storage.local.target_checks import check_apart, refuse_overlap
from reshard.storage.location import Location, locate, source_text
from reshard.storage.target import traits_at
from reshard.storage.targets import check_place, has_leftovers, target_text

_HELD_TEXTS = 6
"""Copies of the metadata beside the tensors that are in memory while a header or a record with it is made."""

_FOUND = Requests(head=1, list=1)
"""Requests that look for an existing target, which a run makes once more than its plan."""

NO_KEY = ConversionKey("", "", {})


class TargetPlan(Struct, frozen=True):
    """One target as it is planned.

    Attributes:
        number: its place among the targets of the call.
        name: its name in errors; None where it is the only one.
        target: its path and its options.
        reader: the open source.
        checkpoint: the content to write.
        summary: as a caller gets it.
        key: of this conversion, with its plan; ``NO_KEY`` before it is to be carried out.
    """

    number: int
    name: str | None
    target: CheckedTarget
    reader: Reader
    checkpoint: TargetCheckpoint
    summary: ConversionPlan
    key: ConversionKey = NO_KEY

    @property
    def place(self) -> Location:
        """The place of the target."""
        return self.target.place

    @property
    def plan(self) -> Plan:
        """The pieces and units that are moved."""
        found: Plan = self.summary.plan
        return found

    @property
    def equal(self) -> tuple[tuple[str, str], ...]:
        """Pairs of source tensors that a map says are equal."""
        return () if self.summary.map is None else self.summary.map.tied

    @property
    def file(self) -> str:
        """Name of the staged file that becomes the target; "" where a folder does."""
        return self.checkpoint.form.file

    @property
    def has_leftovers(self) -> bool:
        """True if a run that is unfinished, or writing now, has begun it."""
        return has_leftovers(self.place, self.file, self.target.state)

    def keyed(self, key: ConversionKey) -> TargetPlan:
        """The plan to be carried out: its key contains the plan, and its checkpoint the key's name of the output."""
        checkpoint = replace(self.checkpoint, conversion=key.output)
        key = replace(key, plan=plan_digest(self.plan, checkpoint))
        return replace(self, checkpoint=checkpoint, key=key)


class JointPlan(Struct, frozen=True):
    """The open source, and the plan of each target.

    Attributes:
        total: the reads that tensors of all targets share.
        finished: numbers of the targets that are there already.
        features: of the run.
        requests: to buckets; None where neither the source nor a target is in one.
    """

    chosen: CheckpointPath
    reader: Reader
    targets: tuple[TargetPlan, ...]
    total: MultiPlan
    finished: Collection[int] = ()
    features: tuple[Feature, ...] = ()
    requests: RequestPlan | None = None

    @property
    def left(self) -> list[TargetPlan]:
        """The targets that are not there yet."""
        return [target for target in self.targets if target.number not in self.finished]

    @property
    def summaries(self) -> tuple[ConversionPlan, ...]:
        """The plan of each target, as a caller gets it; a single one has the requests, too."""
        found = tuple(target.summary for target in self.targets)
        return (priced(found[0], self.requests),) if len(found) == 1 else found

    def answer(self) -> MultiConversionPlan:
        """The record that a call returns, made only where one is asked for: of 100,000 tensors the totals take two seconds and 20 MiB."""
        return MultiConversionPlan.of(self.chosen.path, self.summaries, self.total, self.requests)

    def limits(self, executor: Executor | None) -> Limits:
        """The memory that metadata leaves for buffers, and the workers."""
        return Limits(self.total.max_memory, self.total.workers, executor)


def plan_conversions(
    chosen: CheckpointPath, targets: Sequence[CheckedTarget], hosts: int = 1
) -> JointPlan:
    """The plan of a conversion to ``targets`` on so many hosts; raises what can be refused before a byte moves."""
    source, targets = local_paths(chosen.path, targets)
    places = [target.target for target in targets]
    more = _FOUND * sum(traits_at(place).by_requests for place in places)
    features = features_of_run(source, places, more=more)
    chosen = replace(chosen, path=source)
    plan = plan_targets(chosen, targets, by_hosts=hosts > 1, features=features)
    return plan if hosts == 1 else _warned_of_idle_hosts(plan, hosts)


def useful_parts(plan: JointPlan) -> Widest:
    """The most parts that make a conversion faster."""
    outputs: list[TargetOutput | None] = []
    for target in plan.targets:
        output = None  # only files that are written in order count
        if any(tensor.target.in_order is not None for tensor in target.plan.unlike):
            files = target.checkpoint.form.plan(target.checkpoint)
            output = TargetOutput(files, {}, str(target.place))
        outputs.append(output)
    return widest(plan.total, outputs)


def _warned_of_idle_hosts(plan: JointPlan, hosts: int) -> JointPlan:
    """The plan; with a warning where fewer parts are useful than there are hosts."""
    found = useful_parts(plan)
    if found.parts >= hosts:
        return plan
    first, *others = plan.targets
    warnings = (*first.summary.warnings, str(found))
    first = replace(first, summary=replace(first.summary, warnings=warnings))
    return replace(plan, targets=(first, *others))


def plan_without_target(
    chosen: CheckpointPath, target: CheckedTarget, hosts: int = 1
) -> ConversionPlan:
    """The plan, for so many hosts, of a conversion whose target has no name yet."""
    source = source_text(chosen.path)
    features = features_of_run(source, [])
    chosen = replace(chosen, path=source)
    return plan_targets(chosen, [target], by_hosts=hosts > 1, features=features).summaries[0]


def local_paths(
    source: str, targets: Sequence[CheckedTarget]
) -> tuple[str, tuple[CheckedTarget, ...]]:
    """Source and targets with local paths instead of ``file://`` URLs. Refuses targets that are, or contain, one another."""
    source = source_text(source)
    named = tuple(replace(target, target=target_text(target.target)) for target in targets)
    check_apart([target.place for target in named])
    return source, named


@making_many()
def plan_targets(
    chosen: CheckpointPath,
    targets: Sequence[CheckedTarget],
    finished: Collection[int] = (),
    executor: Executor | None = None,
    *,
    by_hosts: bool = False,
    features: Sequence[Feature] = (),
) -> JointPlan:
    """Opens the source once, plans for all targets, and refuses whatever can be refused before a byte moves.

    The targets whose numbers are ``finished`` are there already. They are planned all the same: which
    targets share a read, and how, must not depend on how far an earlier run came.

    Args:
        by_hosts: parts write the target, so that each file is written by one task, or by one batch.
        features: those that the run has besides the ones that options and source ask for.
    """
    found = open_contents(chosen, targets, finished, by_hosts=by_hosts)
    reader, contents, quantized = found.reader, found.contents, found.quantized
    total = _multi_plan(reader, contents, targets, executor)
    planned = []
    for number, (target, content) in enumerate(zip(targets, contents, strict=True)):
        name = target.target if len(targets) > 1 else None
        with about_target(name):
            made = (target, content, total.plans[number], found.missing[number])
            summary = _summary(chosen.path, reader, *made, quantized)
        checkpoint = content.checkpoint
        planned.append(TargetPlan(number, name, target, reader, checkpoint, summary))
    every = (*features_of(chosen, targets, reader), *features)
    plan = JointPlan(chosen, reader, tuple(planned), total, finished, every)
    for feature in every:
        plan = feature.plan(plan)
    return plan


class OpenContents(Struct, frozen=True):
    """The open source, and the content of each target, before anything is known of how bytes move.

    Attributes:
        reader: the source, its missing chunks treated as the targets ask.
        quantized: the codes and scales of the source.
        missing: the chunks that the tensors of each target lack, by name.
    """

    reader: Reader
    contents: Sequence[TargetContent]
    quantized: Quantized | None
    missing: Sequence[Mapping[str, Stored]]


def open_contents(
    chosen: CheckpointPath,
    targets: Sequence[CheckedTarget],
    finished: Collection[int] = (),
    *,
    by_hosts: bool = False,
) -> OpenContents:
    """Opens the source once, and makes the content of each target; arguments and errors as for ``plan_targets``."""
    reader = open_to_convert(chosen, targets[0].max_memory, len(targets))
    names = [target.target if len(targets) > 1 else None for target in targets]
    forms = []
    for number, (name, target) in enumerate(zip(names, targets, strict=True)):
        with about_target(name):
            forms.append(_form(reader, chosen, target, is_finished=number in finished))
    opened, reader = reader, read_as(reader, *(target.missing_chunks for target in targets))
    may_hold_codes = any(tensor.spec.dtype in CODES for tensor in reader.tensors.values())
    quantized = quantization(opened) if may_hold_codes else None
    contents, missing = [], []
    for name, target, form in zip(names, targets, forms, strict=True):
        with about_target(name):
            traits = replace(traits_at(target.target), by_hosts=by_hosts)
            content = make_target(reader, target, form, traits, quantized)
            if quantized is not None:
                refuse_parted_weights(quantized, reader, target, content)
            contents.append(content)
            # CorruptError for tensors that the target takes, and that lack chunks, where these are refused.
            pieces = (wanted.piece for wanted in content.wanted_pieces)
            taken = dict.fromkeys(piece.source for piece in pieces if piece.fill is None)
            missing.append(check_missing(opened, taken, target.missing_chunks))
    return OpenContents(reader, contents, quantized, missing)


def _form(
    reader: Reader, chosen: CheckpointPath, target: CheckedTarget, *, is_finished: bool
) -> Form:
    """The form of a target; refuses a place whose content may not be replaced."""
    if not target.target:
        return form_of(reader, target)
    place = target.place
    form = form_of(reader, target, place.traits)
    named_options(target.target, form.format, target.format_options)
    if not is_finished:
        for other in (read for one in chosen.computed for read in one.places):
            refuse_overlap(place, other)
        check_place(place, locate(chosen.path), overwrite=target.overwrite, file=form.file)
        refuse_other_content(place)
    return form


def _multi_plan(
    reader: Reader,
    contents: Sequence[TargetContent],
    targets: Sequence[CheckedTarget],
    executor: Executor | None = None,
) -> MultiPlan:
    """The joint plan; in processes where that is faster, unless source or target need a library, or the caller has threads."""
    asked = AskedFills.of([content.wanted_pieces for content in contents])
    checkpoints = [content.checkpoint for content in contents]
    metadata = _metadata_bytes(reader, checkpoints, targets)
    max_memory, workers = targets[0].max_memory, targets[0].workers

    def plan_with(processes: int) -> MultiPlan:
        return plan_fills(asked, max_memory, workers, metadata, processes)

    # A bucket or a database, whose library takes much memory in each process.
    places = [reader.uri, *(target.target for target in targets)]
    needs_library = any(traits_at(place).range_bytes for place in places) or any(
        checkpoint.form.put_bytes(0) is not None for checkpoint in checkpoints
    )
    if executor is not None or needs_library:
        return plan_with(0)
    return plan_with_processes(plan_with, max_memory)


def _summary(
    source: str,
    reader: Reader,
    target: CheckedTarget,
    content: TargetContent,
    plan: Plan,
    missing: Mapping[str, Stored],
    quantized: Quantized | None,
) -> ConversionPlan:
    """The plan of one target as a caller gets it, before its features."""
    checkpoint, mapping = content.checkpoint, content.mapping
    moved = (tensor.source.spec for tensor in plan.tensors)
    # Tensors of strings are cut by no layout.
    strings = [x.name for x in checkpoint.leaves if x.carried is not None and x.carried.shape]
    return ConversionPlan(
        source=source,
        target=target.target or None,
        tensors=planned_tensors(plan.tensors, checkpoint, is_mapped=mapping is not None),
        totals=PlanTotals.of(plan),
        carried=tuple(leaf.name for leaf in checkpoint.leaves if not leaf.tensor),
        dropped=content.dropped,
        warnings=(
            *reader.warnings,
            *layout_warnings(target.layout, list(checkpoint.tensors), moved, strings),
            *content.warnings,
            *(bare_warnings(quantized) if quantized is not None else ()),
            *missing_warnings(reader.uri, missing, target.missing_chunks),
            *record_warnings(unprotected(reader)),
        ),
        missing_chunks=numbers(missing),
        free_bytes=target.place.parent.free_bytes() if target.target else None,
        map=None if mapping is None else MapSummary.of(mapping),
        quantized=quantized_text(reader, quantized),
        plan=plan,
    )


def _metadata_bytes(
    reader: Reader, checkpoints: Sequence[TargetCheckpoint], targets: Sequence[CheckedTarget]
) -> int:
    """Memory of the metadata of source and targets; targets that are read back are opened one after the other."""
    is_read_back = any(target.check == "readback" for target in targets)
    read_back = reader.metadata_bytes if is_read_back else 0
    written = sum(
        BYTES_PER_TENSOR * len(t.tensors) + _device_id_bytes(t) + _HELD_TEXTS * t.metadata.nbytes
        for t in checkpoints
    )
    return reader.metadata_bytes + written + read_back


def _device_id_bytes(target: TargetCheckpoint) -> int:
    """Bytes of the text that names the devices of a tensor, which Orbax repeats for each tensor."""
    meshes = (t.spec.layout.device_mesh for t in target.tensors.values() if t.spec.layout)
    return sum(
        BYTES_PER_DEVICE_ID * len(mesh.device_ids) for mesh in meshes if mesh and mesh.device_ids
    )
