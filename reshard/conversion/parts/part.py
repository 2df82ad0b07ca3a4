"""The story of one part of a conversion: it makes the plan that all parts make, does its share of the units, and seals it.

A part keeps its files and its journal in a folder of its own, beside each target. Its last record says that it is done, and follows a sync.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from msgspec.structs import replace

from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.conversion_key import source_state
from reshard.conversion.convert import (
    do_tasks,
    find_finished,
    note_source,
    open_and_plan,
    targets_by_number,
    to_carry_out,
)
from reshard.conversion.make_plan import JointPlan, TargetPlan, local_paths
from reshard.conversion.open_target import (
    OpenTarget,
    begun_targets,
    locked_targets,
    open_output,
    open_target,
)
from reshard.conversion.parts.read_back import read_back_part
from reshard.conversion.parts.request import claim_parts, parse_request, refuse_more, request_of
from reshard.conversion.report import PartReport
from reshard.conversion.resumed import begin_or_resume
from reshard.conversion.run import Run, start_run
from reshard.engine.limits import Limits
from reshard.engine.output import TargetOutput
from reshard.engine.progress import Tell
from reshard.engine.task import Result
from reshard.engine.task_stream import units_of_part
from reshard.errors import (
    MissingError,
    PlanError,
    ReshardError,
    SourceChangedError,
    TargetBusyError,
)
from reshard.formats.base import Reader
from reshard.formats.registry import CheckpointPath
from reshard.storage.location import Location, locate
from reshard.storage.parts import (
    Part,
    allow_parts,
    is_stopped,
    lock_part,
    part_root,
    parts_request,
    seal_part,
)
from reshard.storage.targets import target_text

LOOK_S = 1.0
"""Seconds between two looks for a wish to stop."""

BUSY_S = 1.0
"""Seconds between two looks at a part that another process does."""

Options = Mapping[str, Any]
"""The options of a target as plain data, by which other hosts know it."""


def convert_one_part(
    chosen: CheckpointPath,
    targets: Sequence[CheckedTarget],
    part: Part,
    options: Sequence[Options],
    progress: Tell | None = None,
) -> PartReport:
    """Does one part, or what is left of it. ``options``: those of each target; all parts give the same.

    It does not ask whether there is space: the other parts have taken some of it.
    """
    source, named = local_paths(chosen.path, targets)
    run: Run[PartReport] = start_run(chosen, named, progress)
    for each in run.targets:
        allow_parts(each.place, each.state)
    report = _do_part(run, part, options)
    return replace(report, source=source, target=named[0].target)


def do_recorded_part(
    target: str,
    part: Part,
    state: str | None = None,
    progress: Tell | None = None,
    patience_s: float = 0,
) -> PartReport:
    """Does one part of the conversion that is recorded beside a target, or what is left of it.

    ``patience_s``: seconds to wait for another process that does the part. Raises MissingError where no conversion is recorded, or where this
    host does not see the record, PlanError for a part that it does not have.
    """
    place = locate(target_text(target))
    data = parts_request(place, state)
    if data is None:
        raise MissingError(
            f"no conversion in parts is recorded beside {target!r}: it was committed or removed, or this host does not share the file system of "
            "the target; begin one there (reshard convert --part), or give a path that all hosts share"
        )
    request = parse_request(data, str(place))
    if part.count != request.parts:
        raise PlanError(
            f"part is {part}, but the conversion to {target!r} has {request.parts} parts; give {min(part.number, request.parts)}/{request.parts}"
        )
    # Before the plan, against many parts that begin one by one though all were asked to end.
    StopMark(place, state).check()
    run, options = request.run(progress), [one.options for one in request.targets]
    until = time.monotonic() + patience_s
    while True:
        try:
            return _do_part(run, part, options)
        except TargetBusyError:
            # Against a host that was lost, whose lock or lease lasts a while.
            if time.monotonic() >= until:
                raise
            time.sleep(BUSY_S)


def _do_part(run: Run[PartReport], part: Part, options: Sequence[Options]) -> PartReport:
    note_source(run)
    find_finished(run, _note_finished)
    left: list[TargetPlan] = []
    if run.is_unfinished:
        plan = open_and_plan(run, _note_finished, by_hosts=True)
        left = to_carry_out(run, plan)
    if not left:
        ends = (run.source, run.targets[0].target, str(part))
        return PartReport(*ends, seconds=run.seconds, already_done=True)
    if parts_request(left[0].place, left[0].target.state) is None:
        refuse_more(part.count, plan)
    claim_parts(request_of(run, left, part.count, options), left)
    return _do_units(run, plan, left, part)


def _note_finished(run: Run[Any], number: int, _: Reader) -> None:
    """Notes a target that the commit has published; the commit removes what was left, too."""
    run.reports[number] = None


def _do_units(
    run: Run[PartReport], plan: JointPlan, left: Sequence[TargetPlan], part: Part
) -> PartReport:
    """Does the units of a part for the targets that are left, and seals them."""

    name = secrets.token_hex(8)  # of this run of the part, whose files no other run writes

    def lock(planned: TargetPlan, output: TargetOutput, locks: ExitStack) -> OpenTarget:
        target = planned.target
        held = lock_part(
            planned.place,
            part,
            unsafe=target.unsafe_commit,
            state=target.state,
            overwrite=target.overwrite,
            run=name,
        )
        opened = open_target(run, planned, output, locks.enter_context(held))
        opened.record = partial(_record, opened.record, StopMark(planned.place, target.state))
        return opened

    def begin(target: OpenTarget) -> None:
        begin_or_resume(target, prepares=False)  # parts make only files of their own

    limits = plan.limits(None)
    roots = [
        part_root(e.place, part, name, e.target.state, overwrite=e.target.overwrite) for e in left
    ]
    outputs = [open_output(each, limits, root) for each, root in zip(left, roots, strict=True)]
    with locked_targets(run, left, outputs, lock) as targets:
        _expect(run, plan, targets, part)
        with begun_targets(targets, begin):
            do_tasks(run, plan, targets, part)
            for target in targets:
                _seal(run, target, part, plan.limits(None))
        books = [target.books for target in targets]
        return PartReport(
            run.source,
            run.targets[0].target,
            str(part),
            tasks=sum(of.tasks_done for of in books),
            moved_bytes=sum(of.moved_bytes for of in books),
            read_bytes=run.read_bytes,
            written_bytes=sum(of.written_bytes for of in books),
            resumed_bytes=sum(of.resumed_bytes for of in books),
            seconds=run.seconds,
            warnings=tuple(dict.fromkeys(w for each in left for w in each.summary.warnings)),
        )


class StopMark:
    """The wish of the run that began the parts of a target that they end; looked for at most once a second."""

    def __init__(self, place: Location, state: str | None) -> None:
        self._place, self._state = place, state
        self._next = time.monotonic()

    def check(self) -> None:
        """Raises ReshardError if the parts were asked to end."""
        if time.monotonic() < self._next:
            return
        if is_stopped(self._place, self._state):
            raise ReshardError(
                f"the conversion to {self._place} in parts was stopped by the run that began it; run that again to resume it"
            )
        self._next = time.monotonic() + LOOK_S


def _record(
    record: Callable[[Sequence[Result]], None] | None, stop: StopMark, results: Sequence[Result]
) -> None:
    """Records results, unless the parts were asked to end."""
    stop.check()
    if record is not None:
        record(results)


def _expect(run: Run[Any], plan: JointPlan, targets: Sequence[OpenTarget], part: Part) -> None:
    """Notes the work of the part, which is less than the plan."""
    nbytes = [0] * len(run.targets)
    counts = [0] * len(run.targets)
    runs = targets_by_number(run, targets)
    for number, tensor, unit in units_of_part(plan.total, [plan.reader], runs, part):
        nbytes[number] += plan.total.plans[number].tensors[tensor].unit_bytes(unit)
        counts[number] += 1
    for target in targets:
        number = target.planned.number
        target.books.expect(nbytes[number], counts[number])
        run.progress.expect(number, nbytes[number], counts[number])


def _seal(run: Run[Any], target: OpenTarget, part: Part, limits: Limits) -> None:
    """Makes the work of a part durable, and records that it is done; SourceChangedError where its source changed."""
    sealed: dict[str, Any] = {"sealed": str(part)}
    if target.planned.target.check == "readback":
        sealed["read_back"] = read_back_part(target, limits, run.progress.listener)
    if source_state(locate(run.source), run.chosen.computed) != target.planned.key.files:
        raise SourceChangedError(
            f"the source {run.source!r} changed while it was read; what this part did was discarded; run again when nothing writes to it"
        )
    seal_part(target.planned.place, part, target.transaction, json.dumps(sealed))
