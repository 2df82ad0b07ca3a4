"""The stories of a part of a conversion, and of the commit of its parts: each part seals its work, and the commit takes over all of it.

A part keeps its files and its journal in a folder of its own. Its last record says that it is done, and follows a sync. The
commit folds the journals of all parts into the target's own. On a disk each file is moved from its part below the root of the
target, after the record that names it: a commit that is interrupted resumes, since a recorded chunk that is not there yet
is taken from its part again.

PartsRequest: the JSON record that all parts share and ``commit`` reads.

::

    {"format": "reshard.parts", "version": 1, "parts": 16, "source": "…", "max_memory": 1073741824, "workers": 8,
     "identity": {…}, "options": {"layout": {…}, "compression": "none", …}}

The first part records it; a part or a commit that comes to another key is refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from reshard.arguments import Unlisted
from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.conversion_key import (
    ConversionKey,
    checked_again,
    differences,
    key_left,
    source_state,
)
from reshard.conversion.convert import (
    do_tasks,
    find_finished,
    note_source,
    open_and_plan,
    prove_and_publish,
    to_carry_out,
)
from reshard.conversion.identity import recorded_report
from reshard.conversion.make_plan import JointPlan, TargetPlan, local_paths
from reshard.conversion.open_target import (
    OpenTarget,
    begun_targets,
    clean_published,
    lock_whole,
    locked_targets,
    open_output,
    open_target,
    open_to_tasks,
)
from reshard.conversion.report import ConversionReport, PartReport, finished_report
from reshard.conversion.resumed import begin_or_resume
from reshard.conversion.run import Run, start_run
from reshard.engine.books import DoneUnits
from reshard.engine.journal import read_results, record_of
from reshard.engine.limits import Limits
from reshard.engine.output import TargetOutput
from reshard.engine.part_units import PartUnits
from reshard.engine.progress import Progress
from reshard.engine.task import Result
from reshard.engine.task_stream import units_of_part
from reshard.errors import (
    MissingError,
    ReshardError,
    ResumeError,
    SourceChangedError,
    StorageError,
    TargetBusyError,
)
from reshard.formats.base import Reader
from reshard.formats.file_map import prepare_files
from reshard.formats.registry import CheckpointPath, open_reader
from reshard.planning.plans import MultiPlan
from reshard.storage.location import Location, locate
from reshard.storage.parts import (
    Part,
    claim_request,
    lock_part,
    part_root,
    parts_of,
    parts_request,
    refuse_replacing,
    remove_parts,
    seal_part,
    take_files,
)
from reshard.storage.targets import target_text
from reshard.storage.transaction import Records, Transaction

FORMAT = "reshard.parts"
VERSION = 1

RESULTS_AT_ONCE = 256
"""Results of a part that are recorded at once, before their files are moved."""

MOST_SHOWN = 16


class PartsRequest(Struct, frozen=True, rename={"key": "identity"}):
    """The conversion that parts do together.

    Attributes:
        parts: their number.
        options: of ``Target``, as plain data.
        unlisted: as in ``convert``.
    """

    parts: int
    source: str
    max_memory: int
    workers: int
    key: ConversionKey
    options: Mapping[str, Any]
    unlisted: Unlisted = "leave"

    def render(self) -> bytes:
        """The content of the record."""
        document = {"format": FORMAT, "version": VERSION, **to_builtins(self)}
        return json.dumps(document, sort_keys=True).encode()

    def target(self, path: str) -> CheckedTarget:
        """The target with its options."""
        return checked_again(path, self.options, Limits(self.max_memory, self.workers))


def parse_request(data: bytes, target: str) -> PartsRequest:
    """The record of the parts of a target; ResumeError where it is damaged, or of another version of this program."""
    try:
        document = json.loads(data)
        known = (document.pop("format"), document.pop("version")) == (FORMAT, VERSION)
        key = key_left(document.pop("identity"))
        if known and key is not None:
            found = PartsRequest(key=key, **document)
            if all(type(n) is int for n in (found.parts, found.max_memory, found.workers)):
                return found
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise ResumeError(
        f"the record of the parts of {target!r} is damaged, or of another version of reshard; commit them with that version, or remove "
        "them (reshard clean) and begin again"
    )


def _refuse_other(theirs: PartsRequest, ours: PartsRequest, target: str) -> None:
    """Raises ResumeError unless a part belongs to the conversion of the others."""
    what = differences(theirs.key, ours.key)
    if theirs.parts != ours.parts:
        what = [f"there were {theirs.parts} parts and are {ours.parts}", *what]
    if what:
        raise ResumeError(
            f"the parts of {target!r} that were begun are of another conversion: {'; '.join(what)}; give every part the same source, options, "
            "--max-memory and --workers, or remove what was begun (reshard clean)"
        )


def convert_one_part(
    chosen: CheckpointPath,
    target: CheckedTarget,
    part: Part,
    options: Mapping[str, Any],
    progress: Callable[[Progress], None] | None = None,
) -> PartReport:
    """Does one part, or what is left of it. ``options``: the target's options as plain data; all parts give the same.

    Every part makes the same plan and takes its share of the units (``engine.read_tasks``). It keeps its work in a folder
    of its own, with its own lock and journal. It does not ask whether there is space: the others have taken some of it.
    """
    source, (asked,) = local_paths(chosen.path, [target])
    if asked.overwrite:
        refuse_replacing(asked.target)
    run: Run[PartReport] = start_run(chosen, [asked], progress)
    note_source(run)

    def found(run: Run[PartReport], number: int, _: Reader) -> None:
        ends = (run.source, asked.target)
        report = PartReport(*ends, str(part), seconds=run.seconds, already_done=True)
        run.reports[number] = report  # what was left is cleaned by the commit

    find_finished(run, found)
    if run.is_unfinished:
        plan = open_and_plan(
            run, found, by_hosts=True
        )  # all parts have the plan that other hosts have
        for planned in to_carry_out(run, plan):
            run.reports[0] = _do_part(run, plan, planned, part, options)
    return replace(run.reports[0], source=source, target=asked.target)


def _do_part(
    run: Run[PartReport],
    plan: JointPlan,
    planned: TargetPlan,
    part: Part,
    options: Mapping[str, Any],
) -> PartReport:
    """Does a part of a plan, and seals it."""

    def lock(planned: TargetPlan, output: TargetOutput, locks: ExitStack) -> OpenTarget:
        target, place = planned.target, planned.place
        limits = (target.max_memory, target.workers)
        unlisted = run.chosen.unlisted
        ours = PartsRequest(part.count, run.source, *limits, planned.key, options, unlisted)
        recorded = claim_request(place, ours.render(), target.state)
        _refuse_other(parse_request(recorded, str(place)), ours, str(place))
        held = lock_part(place, part, unsafe=target.unsafe_commit, state=target.state)
        opened = open_target(run, planned, output, locks.enter_context(held))
        units = list(units_of_part(plan.total, [plan.reader], [opened], part))
        tensors = planned.plan.tensors
        opened.books.expect(sum(tensors[t].unit_bytes(unit) for _, t, unit in units), len(units))
        return opened

    def begin(target: OpenTarget) -> None:
        begin_or_resume(target, prepares=False)  # parts make only files of their own
        open_to_tasks(target)

    output = open_output(planned, plan.limits(None), part_root(planned.place, part))
    with locked_targets(run, [planned], [output], lock) as (target,):
        with begun_targets([target], begin):
            do_tasks(run, plan, [target], part)
            _seal(target, part, run.source)
        books = target.books
        return PartReport(
            run.source,
            str(planned.place),
            str(part),
            tasks=books.tasks_done,
            moved_bytes=books.moved_bytes,
            read_bytes=run.read_bytes,
            written_bytes=books.written_bytes,
            resumed_bytes=books.resumed_bytes,
            seconds=run.seconds,
            warnings=planned.summary.warnings,
        )


def commit_parts(
    target: str, state: str | None = None, progress: Callable[[Progress], None] | None = None
) -> ConversionReport:
    """Publishes the target that all parts have made.

    Raises MissingError where no part was begun, StorageError naming the parts that are missing or not done, TargetBusyError
    where one is at work, SourceChangedError and VerificationError as a conversion does.
    """
    started, place = time.monotonic(), locate(target_text(target))
    agreed = agreed_request(place, state)
    if agreed is None:
        found = open_reader(str(place))
        identity = recorded_report(found)
        return finished_report("", target, found, time.monotonic() - started, identity)
    chosen = CheckpointPath.at(agreed.source, agreed.unlisted)
    run: Run[ConversionReport] = start_run(chosen, [agreed.target(str(place))], progress)
    note_source(run)
    find_finished(run, _report_committed)
    if run.is_unfinished:
        plan = open_and_plan(run, _report_committed, by_hosts=True)
        for planned in to_carry_out(run, plan):
            _commit(run, plan, planned, agreed)
            remove_parts(place, planned.target.state)
    # The parts moved what a commit takes over.
    return replace(run.reports[0], source=agreed.source, target=target, resumed_bytes=0)


def _report_committed(run: Run[ConversionReport], number: int, result: Reader) -> None:
    """Reports a target that an earlier commit published before it was interrupted."""
    target = run.targets[number]
    remove_parts(target.place, target.state)
    clean_published(target, run.keys[number])
    identity = recorded_report(result)  # `commit` takes no identity option
    ends = (run.source, target.target)
    run.reports[number] = finished_report(*ends, result, run.seconds, identity)


def _commit(
    run: Run[ConversionReport], plan: JointPlan, planned: TargetPlan, agreed: PartsRequest
) -> None:
    """Takes over the work of all parts, and publishes it."""
    parts: dict[Part, Transaction] = {}

    def lock(planned: TargetPlan, output: TargetOutput, locks: ExitStack) -> OpenTarget:
        _refuse_other(agreed, replace(agreed, key=planned.key), str(planned.place))
        parts.update(locked_parts(locks, planned.place, agreed.parts, planned.target.state))
        opened = open_target(run, planned, output, lock_whole(planned, locks))
        _check_sealed(
            opened, parts, plan.total, agreed.parts
        )  # before any of their work may be removed
        return opened

    def begin(target: OpenTarget) -> None:
        if not _has_files_of(target, parts):  # none of them may be removed
            begin_or_resume(target)

    output = open_output(planned, plan.limits(None))
    with locked_targets(run, [planned], [output], lock) as (target,):
        with begun_targets([target], begin):
            take_over(target, parts)
        prove_and_publish(run, plan, target)
        for transaction in parts.values():
            transaction.abort()


def _has_files_of(target: OpenTarget, parts: Mapping[Part, Transaction]) -> bool:
    """True if parts write below the target's own root, as in a bucket; else their files are moved there."""
    root = target.transaction.root
    return any(part.root == root for part in parts.values())


def _seal(target: OpenTarget, part: Part, source: str) -> None:
    """Makes the work of a part durable, and records that it is done; SourceChangedError where its source changed."""
    if source_state(locate(source)) != target.planned.key.files:
        raise SourceChangedError(
            f"the source {source!r} changed while it was read; what this part did was discarded; run again when nothing writes to it"
        )
    seal_part(target.planned.place, part, target.transaction, json.dumps({"sealed": str(part)}))


def agreed_request(place: Location, state: str | None) -> PartsRequest | None:
    """The record that the parts of a target share; None where they were committed before, and the target is the result.

    Raises MissingError where no part was begun.
    """
    data = parts_request(place, state)
    if data is not None:
        return parse_request(data, str(place))
    with suppress(ReshardError):
        if open_reader(str(place)).conversion:
            return None
    raise MissingError(
        f"no part of a conversion to {place} was begun; do each with `reshard convert SRC {place} … --part i/n`, and commit then"
    )


def locked_parts(
    stack: ExitStack, place: Location, count: int, state: str | None
) -> dict[Part, Transaction]:
    """The parts that were begun, held until the stack ends; TargetBusyError where one is at work."""
    begun = [part for part in parts_of(place, state) if part.count == count]
    found: dict[Part, Transaction] = {}
    for part in begun:
        try:
            found[part] = stack.enter_context(lock_part(place, part, unsafe=True, state=state))
        except TargetBusyError as error:
            raise TargetBusyError(
                f"part {part} of {place} is at work now; wait for it, and commit then: {error}"
            ) from None
    return found


def _check_sealed(
    target: OpenTarget, parts: Mapping[Part, Transaction], plan: MultiPlan, count: int
) -> None:
    """Raises StorageError, naming the parts, unless every unit of the plan was done once, by its own part."""
    seen = DoneUnits(target.planned.plan)
    lacking: list[str] = []
    every = PartUnits(plan, [target.planned.reader], [target], count)  # cut once for all parts
    for number in range(1, count + 1):
        part = Part(number, count)
        own = {(tensor, unit) for _, tensor, unit in every.units(part)}
        if part not in parts:
            lacking.append(f"{part} (not begun)")
            continue
        done = _count_done(target, part, parts[part], own, seen)
        if done < len(own) or not _is_sealed(parts[part], part):
            lacking.append(f"{part} ({done:,} of {len(own):,} tasks done)")
    if lacking:
        more = f" and {len(lacking) - MOST_SHOWN} more" if len(lacking) > MOST_SHOWN else ""
        raise StorageError(
            f"the parts {', '.join(lacking[:MOST_SHOWN])}{more} of {target.planned.place} are missing; nothing was published: do each with the same "
            "`reshard convert … --part i/n`, and commit then"
        )


def _count_done(
    target: OpenTarget,
    part: Part,
    records: Records,
    own: Collection[tuple[int, int]],
    seen: DoneUnits,
) -> int:
    """Counts the units that the part did, and adds them to ``seen``. StorageError for one that is not its own, or done twice."""
    done = 0
    for result in read_results(records.records(), target.planned.plan):
        tensor, unit = result.tensor, result.unit
        if (tensor, unit) not in own or seen.has(tensor, unit):
            raise StorageError(
                f"part {part} of {target.planned.place} records a unit that is not its own; remove the parts (reshard clean), and begin again"
            )
        seen.add(tensor, unit)
        done += 1
    return done


def _is_sealed(transaction: Records, part: Part) -> bool:
    """True if the part's last record says that it is done and durable."""
    last = b""
    for record in transaction.records():
        last = record
    try:
        return bool(json.loads(last) == {"sealed": str(part)})
    except (ValueError, RecursionError):
        return False


def take_over(target: OpenTarget, parts: Mapping[Part, Transaction]) -> None:
    """Makes the work of the parts the target's own. On a disk the target was begun before, in a bucket it was not."""
    if _has_files_of(target, parts):
        _take_over_in_bucket(target, parts)
        return
    for part, transaction in sorted(parts.items()):
        for results in _new(target, transaction):
            target.transaction.append(record_of(results))
            try:
                take_files(
                    target.planned.place, part, target.transaction.root, target.files(results)
                )
            except StorageError as error:
                raise StorageError(
                    f"a file of part {part} is not there any more: {error}; do that part again, and commit then"
                ) from error
            _count(target, results)
    target.transaction.close_to_tasks()


def _take_over_in_bucket(target: OpenTarget, parts: Mapping[Part, Transaction]) -> None:
    """Takes over the records alone, since the objects are in their places."""
    target.done = DoneUnits(target.planned.plan)
    target.transaction.keep_files()

    def records() -> Iterator[str]:
        for _, transaction in sorted(parts.items()):
            for results in _new(target, transaction):
                _count(target, results)
                yield record_of(results)

    target.transaction.rewrite(to_builtins(target.planned.key), records())
    prepare_files(target.output.files, target.recording_root)


def _new(target: OpenTarget, transaction: Records) -> Iterator[Sequence[Result]]:
    """The results of a part that the target lacks, some at a time."""
    results: list[Result] = []
    for result in read_results(transaction.records(), target.planned.plan):
        if target.done is not None and not target.done.has(result.tensor, result.unit):
            results.append(result)
        if len(results) == RESULTS_AT_ONCE:
            yield results
            results = []
    if results:
        yield results


def _count(target: OpenTarget, results: Sequence[Result]) -> None:
    for result in results:
        target.books.take(result, is_resumed=False)
        if target.done is not None:
            target.done.add(result.tensor, result.unit)
    target.books.report_progress(target.planned.plan.tensors[results[-1].tensor].name)
