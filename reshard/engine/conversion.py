"""What a conversion will do: it is prepared, and refused where it can be, without moving a byte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reshard.engine.layouts import layout_warnings
from reshard.engine.open_within import BYTES_PER_MOVE, open_to_convert
from reshard.engine.options import Options
from reshard.engine.record_warnings import record_warnings
from reshard.engine.target import Target, make_target
from reshard.engine.target_folder import refuse_other_content, target_path
from reshard.formats.base import Reader, TargetCheckpoint
from reshard.formats.detect import local_path
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.move import Move, Plan
from reshard.planning.planner import make_plan
from reshard.storage.host import free_bytes
from reshard.storage.local import storage_errors
from reshard.storage.staging import check_target


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor of a plan, with both ends.

    Attributes:
        partition: strategy, amount and axis, where the target is split by count or size.
    """

    source: TensorSpec
    target: TensorSpec
    move: Move
    partition: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """What a conversion will do, before it does it.

    Attributes:
        carried: leaves that are no tensors and travel along unchanged.
        dropped: leaves of the source that are left out.
        free_bytes: what the target's file system has left.
    """

    source: str
    target: str
    plan: Plan
    tensors: tuple[PlannedTensor, ...]
    carried: tuple[str, ...]
    dropped: tuple[str, ...]
    warnings: tuple[str, ...]
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan with the open source and the target that it is about."""

    reader: Reader
    target: Target
    summary: ConversionPlan


def prepare(source: str, target: str, options: Options) -> Prepared:
    """Opens the source, plans, and refuses whatever can be refused before a byte moves."""
    source, target = local_path(source), target_path(target)
    reader = open_to_convert(source, options.max_memory)
    check_target(Path(target), Path(source), overwrite=options.overwrite)
    refuse_other_content(Path(target))
    goal = make_target(reader, options)
    metadata = _metadata_bytes(reader, len(goal.requests), options)
    plan = make_plan(goal.requests, options.max_memory, options.workers, metadata)
    summary = ConversionPlan(
        source,
        target,
        plan,
        tuple(_planned(m, goal.checkpoint) for m in plan.moves),
        tuple(leaf.name for leaf in goal.checkpoint.leaves if not leaf.tensor),
        goal.dropped,
        (
            *layout_warnings(options.layout, list(goal.checkpoint.tensors)),
            *record_warnings(reader),
        ),
        space_left(target),
    )
    return Prepared(reader, replace(goal, requests=()), summary)  # the plan has what they said


def _metadata_bytes(reader: Reader, tensors: int, options: Options) -> int:
    """What both ends keep in memory; to read the target back it is opened, too."""
    read_back = reader.metadata_bytes if options.check == "readback" else 0
    return reader.metadata_bytes + BYTES_PER_MOVE * tensors + read_back


def _planned(move: Move, checkpoint: TargetCheckpoint) -> PlannedTensor:
    source, target = move.source.spec, move.target.spec
    return PlannedTensor(source, target, move, checkpoint.tensors[target.name].partition)


def space_left(target: str) -> int:
    """Bytes that may still be written where ``target`` is or will be."""
    with storage_errors("look at", target):
        return free_bytes(Path(target).absolute().parent)
