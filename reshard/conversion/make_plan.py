"""Makes the plan of a conversion: opens its source, plans for each target, and refuses what can be refused before a byte moves.

``planning/`` decides from metadata alone what must move; this module asks the stores.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor

from msgspec.structs import replace

from reshard.answers.record import making_many
from reshard.conversion.check_target import CheckedOptions, CheckedTarget
from reshard.conversion.known_identity import (
    KnownIdentity,
    identity_warnings,
    known_identity,
    with_version,
)
from reshard.conversion.plan import (
    ConversionPlan,
    JointPlan,
    MapSummary,
    PlanTotals,
    planned_identity,
    planned_tensors,
)
from reshard.conversion.target_plan import (
    Planned,
    TargetPlan,
    form_of,
    make_target,
    refuse_parted_weights,
)
from reshard.engine.error_context import about_target
from reshard.engine.executor import HostsExecutor, is_own
from reshard.engine.metadata_budget import BYTES_PER_DEVICE_ID, BYTES_PER_TENSOR, open_to_convert
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
from reshard.formats.quantized import Quantized, bare_warnings, quantization
from reshard.formats.registry import CheckpointPath, refuse_other_content
from reshard.planning.asked_fills import AskedFills
from reshard.planning.estimates import RequestPlan
from reshard.planning.planner import plan_fills
from reshard.planning.plans import MultiPlan, Plan
from reshard.planning.target_layouts import layout_warnings
from reshard.planning.task_cost import plan_with_processes
from reshard.storage.base import NONE, Requests, Traits
from reshard.storage.local.target_checks import check_apart
from reshard.storage.location import Location, locate, source_text
from reshard.storage.target import traits_at
from reshard.storage.targets import check_place, target_text

_HELD_TEXTS = 6
"""Copies of the metadata beside the tensors that are in memory while a header or a record with it is made."""

_FOUND = Requests(head=1, list=1)
"""Requests that look for an existing target, which a run makes once more than its plan."""


def plan_conversions(
    chosen: CheckpointPath, targets: Sequence[CheckedTarget], hosts: int = 1
) -> JointPlan:
    """The plan of a conversion to ``targets`` on so many hosts; raises what can be refused before a byte moves."""
    source, targets = local_paths(chosen.path, targets)
    planned = plan_targets(replace(chosen, path=source), targets, by_hosts=hosts > 1)
    in_buckets = sum(traits_at(target.target).by_requests for target in targets)
    requests = plan_requests(planned, targets, chosen, _FOUND * in_buckets)
    return planned.summary.with_requests(requests)


def plan_without_target(
    chosen: CheckpointPath, target: CheckedTarget, hosts: int = 1
) -> ConversionPlan:
    """The plan, for so many hosts, of a conversion whose target has no name yet."""
    planned = plan_unnamed(chosen, target.options, by_hosts=hosts > 1)
    requests = plan_requests(planned, [target], chosen)
    return planned.summary.with_requests(requests).plans[0]


def plan_requests(
    planned: Planned,
    targets: Sequence[CheckedTarget],
    chosen: CheckpointPath,
    more: Requests = NONE,
    finished: Collection[int] = (),
) -> RequestPlan | None:
    """The requests of a conversion to buckets; None where neither its source nor a target is in one.

    Args:
        more: requests that the conversion makes besides, before its plan.
        finished: numbers of targets that are there already.
    """
    left = {n: target for n, target in enumerate(targets) if n not in finished}
    places = [planned.summary.source, *(target.target for target in left.values())]
    if not any(traits_at(place).by_requests for place in places):
        return None
    from reshard.conversion.most_requests import most_requests

    return most_requests(planned, left, chosen, more)


@making_many()
def plan_unnamed(
    chosen: CheckpointPath, options: CheckedOptions, *, by_hosts: bool = False
) -> Planned:
    """The plan of a conversion whose target has no name yet; ``by_hosts`` as for ``plan_targets``."""
    source = source_text(chosen.path)
    reader = open_to_convert(replace(chosen, path=source), options.max_memory)
    form = form_of(reader, options)
    read = read_as(reader, options.missing_chunks)
    target = make_target(read, options, form, Traits(by_hosts=by_hosts))
    quantized = quantization(reader)
    refuse_parted_weights(quantized, read, options, target)
    missing = _missing(reader, target, options)
    total = _multi_plan(read, [target], [options])
    known = known_identity(options.identity, total.plans[0], read, chosen.root)
    summary = _summary(
        source, None, total.plans[0], target, options, read, missing, known, quantized
    )
    return Planned(read, (target.checkpoint,), JointPlan(source, (summary,), total))


def local_paths(
    source: str, targets: Sequence[CheckedTarget]
) -> tuple[str, tuple[CheckedTarget, ...]]:
    """Source and targets with local paths instead of ``file://`` URLs. Refuses targets that are, or contain, one another."""
    source = source_text(source)
    named = tuple(replace(target, target=target_text(target.target)) for target in targets)
    check_apart([locate(target.target) for target in named])
    return source, named


@making_many()
def plan_targets(
    chosen: CheckpointPath,
    targets: Sequence[CheckedTarget],
    finished: Collection[int] = (),
    executor: Executor | None = None,
    *,
    by_hosts: bool = False,
) -> Planned:
    """Opens the source once, plans for all targets, and refuses whatever can be refused before a byte moves.

    ``by_hosts``: other processes write the target too, so that each file is written by one task, or by one batch.
    The targets whose numbers are ``finished`` are there already. They are planned all the same: which
    targets share a read, and how, must not depend on how far an earlier run came.
    """
    reader = open_to_convert(chosen, targets[0].options.max_memory, len(targets))
    source, places = chosen.path, [locate(target.target) for target in targets]
    forms = _forms(reader, source, targets, places, finished)
    opened, reader = reader, read_as(reader, *(t.options.missing_chunks for t in targets))
    quantized = quantization(opened)
    target_plans, missing, by_hosts = [], [], by_hosts or not is_own(executor)
    for target, form, place in zip(targets, forms, places, strict=True):
        with about_target(error_name(target, targets)):
            traits = replace(place.traits, by_hosts=by_hosts)
            made = make_target(reader, target.options, form, traits)
            refuse_parted_weights(quantized, reader, target.options, made)
            checkpoint = with_version(made.checkpoint, place, reader, target.options)
            target_plans.append(replace(made, checkpoint=checkpoint))
            missing.append(_missing(opened, made, target.options))
    options = [target.options for target in targets]
    total = _multi_plan(reader, target_plans, options, executor)
    weights, summaries = [], []
    for number, (target, made) in enumerate(zip(targets, target_plans, strict=True)):
        plan, asked = total.plans[number], target.options
        how = "none" if number in finished else asked.identity
        with about_target(error_name(target, targets)):
            known = known_identity(how, plan, reader, chosen.root)
            weights.append(known)
            ends = (source, target.target)
            summaries.append(
                _summary(*ends, plan, made, asked, reader, missing[number], known, quantized)
            )
    checkpoints = tuple(target_plan.checkpoint for target_plan in target_plans)
    equal = tuple(() if made.mapping is None else made.mapping.equal for made in target_plans)
    planned = JointPlan(source, tuple(summaries), total)
    return Planned(reader, checkpoints, planned, by_hosts, equal, tuple(weights))


def _forms(
    reader: Reader,
    source: str,
    targets: Sequence[CheckedTarget],
    places: Sequence[Location],
    finished: Collection[int],
) -> list[Form]:
    """The form of each target; refuses a place whose content may not be replaced."""
    forms = []
    for number, (target, place) in enumerate(zip(targets, places, strict=True)):
        with about_target(error_name(target, targets)):
            form = form_of(reader, target.options, place.traits)
            named_options(target.target, form.format, target.options.format_options)
            forms.append(form)
            if number not in finished:
                overwrite = target.options.overwrite
                check_place(place, locate(source), overwrite=overwrite, file=form.file)
                refuse_other_content(place)
    return forms


def error_name(target: CheckedTarget, targets: Sequence[CheckedTarget]) -> str | None:
    """The name of a target in errors; None where it is the only one."""
    return target.target if len(targets) > 1 else None


def _multi_plan(
    reader: Reader,
    targets: Sequence[TargetPlan],
    options: Sequence[CheckedOptions],
    executor: Executor | None = None,
) -> MultiPlan:
    """The joint plan; in processes where that is faster, unless source or target need a library, or the executor decides.

    On several hosts each has the memory and the workers of the plan.
    """
    asked = AskedFills.of([target.wanted_pieces for target in targets])
    metadata = _metadata_bytes(reader, [target.checkpoint for target in targets], options)
    max_memory, workers = options[0].max_memory, options[0].workers

    def plan_with(processes: int) -> MultiPlan:
        return plan_fills(asked, max_memory, workers, metadata, processes)

    is_of_caller = executor is not None and not isinstance(executor, HostsExecutor)
    if is_of_caller or _needs_library(reader, targets):
        return plan_with(0)
    return plan_with_processes(plan_with, max_memory)


def _needs_library(reader: Reader, targets: Sequence[TargetPlan]) -> bool:
    """True if tasks use a bucket or a database, whose library takes much memory in each process."""
    places = [locate(reader.uri).traits, *(target.traits for target in targets)]
    return any(place.range_bytes for place in places) or any(
        t.checkpoint.form.put_bytes(0) is not None for t in targets
    )


def _summary(
    source: str,
    target: str | None,
    plan: Plan,
    target_plan: TargetPlan,
    options: CheckedOptions,
    reader: Reader,
    missing: Mapping[str, Stored],
    known: KnownIdentity,
    quantized: Quantized | None,
) -> ConversionPlan:
    checkpoint = target_plan.checkpoint
    moved = (tensor.source.spec for tensor in plan.tensors)
    mapping = target_plan.mapping
    identity = planned_identity(known, checkpoint, plan.max_memory, plan.workers)
    peak_bytes = max(plan.peak_bytes, 0 if identity is None else identity.peak_bytes)
    return ConversionPlan(
        source=source,
        target=target,
        tensors=planned_tensors(plan.tensors, checkpoint, is_mapped=mapping is not None),
        totals=PlanTotals.of(plan, peak_bytes),
        carried=tuple(leaf.name for leaf in checkpoint.leaves if not leaf.tensor),
        dropped=target_plan.dropped,
        warnings=(
            *reader.warnings,
            *layout_warnings(options.layout, list(checkpoint.tensors), moved, _strings(checkpoint)),
            *target_plan.warnings,
            *bare_warnings(quantized),
            *missing_warnings(reader.uri, missing, options.missing_chunks),
            *record_warnings(unprotected(reader)),
            *identity_warnings(known, reader, checkpoint),
        ),
        missing_chunks=numbers(missing),
        free_bytes=None if target is None else space_left(target),
        map=None if mapping is None else MapSummary.of(mapping),
        identity=identity,
        quantized="" if quantized is None else quantized.text,
        plan=plan,
    )


def _strings(checkpoint: TargetCheckpoint) -> list[str]:
    """The names of the tensors of strings, which no layout cuts."""
    return [x.name for x in checkpoint.leaves if x.carried is not None and x.carried.shape]


def _missing(reader: Reader, target: TargetPlan, options: CheckedOptions) -> dict[str, Stored]:
    """The tensors that lack stored chunks, among those that the target takes; CorruptError where they are refused."""
    pieces = (wanted.piece for wanted in target.wanted_pieces)
    names = dict.fromkeys(piece.source for piece in pieces if piece.fill is None)
    return check_missing(reader, names, options.missing_chunks)


def _metadata_bytes(
    reader: Reader, targets: Sequence[TargetCheckpoint], options: Sequence[CheckedOptions]
) -> int:
    """Memory of the metadata of source and targets; targets that are read back are opened one after the other."""
    is_read_back = any(each.check == "readback" for each in options)
    read_back = reader.metadata_bytes if is_read_back else 0
    written = sum(
        BYTES_PER_TENSOR * len(t.tensors) + _device_id_bytes(t) + _HELD_TEXTS * t.metadata.nbytes
        for t in targets
    )
    return reader.metadata_bytes + written + read_back


def _device_id_bytes(target: TargetCheckpoint) -> int:
    """Bytes of the text that names the devices of a tensor, which Orbax repeats for each tensor."""
    meshes = (t.spec.layout.device_mesh for t in target.tensors.values() if t.spec.layout)
    return sum(
        BYTES_PER_DEVICE_ID * len(mesh.device_ids) for mesh in meshes if mesh and mesh.device_ids
    )


def space_left(target: str) -> int | None:
    """Bytes that may still be written where ``target`` is or will be; None where no limit is known."""
    return locate(target).parent.free_bytes()
