"""The story of the commit of parts: it takes over the work of all of them, proves it, and publishes the targets.

The commit folds the journals of all parts into the target's own. On a disk each file is moved from its part below the root of the
target, after the record that names it: a commit that is interrupted resumes, since a recorded chunk that is not there yet
is taken from its part again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from reshard.conversion.convert import (
    find_finished,
    note_source,
    open_and_plan,
    prove_and_publish,
    targets_by_number,
    to_carry_out,
)
from reshard.conversion.identity import recorded_report
from reshard.conversion.make_plan import JointPlan, TargetPlan
from reshard.conversion.open_target import (
    OpenTarget,
    begun_targets,
    clean_published,
    lock_whole,
    locked_targets,
    open_output,
    open_target,
)
from reshard.conversion.parts.request import (
    PartsRequest,
    recorded_request,
    refuse_other,
    request_of,
)
from reshard.conversion.report import ConversionReport, MultiReport, finished_report
from reshard.conversion.resumed import begin_or_resume
from reshard.conversion.run import Run
from reshard.engine.books import DoneUnits
from reshard.engine.journal import read_results, record_of
from reshard.engine.output import TargetOutput
from reshard.engine.progress import Progress
from reshard.engine.task import Result
from reshard.engine.task_stream import units_of_part
from reshard.errors import StorageError, TargetBusyError
from reshard.formats.base import Reader
from reshard.formats.file_map import prepare_files
from reshard.formats.registry import open_reader
from reshard.storage.copying import copied_files
from reshard.storage.location import locate
from reshard.storage.parts import Part, lock_part, move_files_of_part, parts_of, remove_parts
from reshard.storage.targets import target_text
from reshard.storage.transaction import Records, Transaction

RESULTS_AT_ONCE = 256
"""Results of a part that are recorded at once, before their files are moved."""

MOST_SHOWN = 16

HeldParts = Mapping[Part, Transaction]
"""The parts that were begun, held by the commit."""


def commit_parts(
    target: str,
    state: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    before_publish: Callable[[str], None] | None = None,
) -> MultiReport:
    """Publishes the targets that all parts have made; ``target`` is one of them.

    Raises MissingError where no part was begun, StorageError naming the parts that are missing or not done, TargetBusyError
    where one is at work, SourceChangedError and VerificationError as a conversion does.
    """
    started, place = time.monotonic(), locate(target_text(target))
    request = recorded_request(place, state)
    if request is None:
        found = open_reader(str(place))
        seconds = time.monotonic() - started
        report = finished_report("", target, found, seconds, recorded_report(found))
        return MultiReport("", (report,), 0, seconds)
    run: Run[ConversionReport] = request.run(progress, before_publish)
    note_source(run)
    find_finished(run, report_committed)
    if run.is_unfinished:
        plan = open_and_plan(run, report_committed, by_hosts=True)
        commit_planned(run, plan, to_carry_out(run, plan), request)
    remove_request(run)
    reports = [run.reports[number] for number in range(len(run.targets))]
    # With the path that the caller gave; the parts moved what a commit takes over.
    made = [
        replace(each, target=target if one.place == place else each.target, resumed_bytes=0)
        for one, each in zip(run.targets, reports, strict=True)
    ]
    return MultiReport(request.source, tuple(made), 0, run.seconds)


def report_committed(run: Run[ConversionReport], number: int, result: Reader) -> None:
    """Reports a target that an earlier commit published before it was interrupted."""
    target = run.targets[number]
    clean_published(target, run.keys[number])
    identity = recorded_report(result)  # `commit` takes no identity option
    ends = (run.source, target.target)
    run.reports[number] = finished_report(*ends, result, run.seconds, identity)


def remove_request(run: Run[Any]) -> None:
    """Removes the parts of all targets; not earlier, since a target's record names the others."""
    for target in run.targets:
        remove_parts(target.place, target.state)


def commit_planned(
    run: Run[ConversionReport],
    plan: JointPlan,
    left: Sequence[TargetPlan],
    request: PartsRequest,
) -> None:
    """Takes over the work of all parts for the targets that are left, and publishes them."""
    options = [one.options for one in request.targets]
    ours = request_of(run, left, request.parts, options)
    held: dict[int, HeldParts] = {}

    def lock(planned: TargetPlan, output: TargetOutput, locks: ExitStack) -> OpenTarget:
        refuse_other(request, ours, str(planned.place))
        parts = locked_parts(locks, planned, request.parts)
        held[planned.number] = parts
        target = open_target(run, planned, output, lock_whole(planned, locks))
        # Before the target counts as held: what is held and cannot be resumed is removed after an error, and with it the work of parts.
        check_sealed(run, plan, target, parts, request.parts)
        return target

    def begin(target: OpenTarget) -> None:
        if not _has_files_of(target, held[target.planned.number]):  # none of them may be removed
            begin_or_resume(target)

    outputs = [open_output(each, plan.limits(None)) for each in left]
    with locked_targets(run, left, outputs, lock) as targets:
        with begun_targets(targets, begin):
            for target in targets:
                take_over(target, held[target.planned.number])
        for target in targets:
            prove_and_publish(run, plan, target)
        for parts in held.values():
            for transaction in parts.values():
                transaction.abort()


def _has_files_of(target: OpenTarget, parts: HeldParts) -> bool:
    """True if parts write below the target's own root, as in a bucket; else their files are moved there."""
    root = target.transaction.root
    return any(part.root == root for part in parts.values())


def locked_parts(stack: ExitStack, planned: TargetPlan, count: int) -> HeldParts:
    """The parts that were begun, held until the stack ends; TargetBusyError where one is at work."""
    place, state, overwrite = planned.place, planned.target.state, planned.target.overwrite
    begun = [part for part in parts_of(place, state) if part.count == count]
    found: dict[Part, Transaction] = {}
    for part in begun:
        try:
            found[part] = stack.enter_context(
                lock_part(place, part, unsafe=True, state=state, overwrite=overwrite)
            )
        except TargetBusyError as error:
            raise TargetBusyError(
                f"part {part} of {place} is at work now; wait for it, and commit then: {error}"
            ) from None
    return found


def check_sealed(
    run: Run[Any],
    plan: JointPlan,
    target: OpenTarget,
    parts: HeldParts,
    count: int,
) -> None:
    """Raises StorageError, naming the parts, unless all are sealed, and every unit of the target was done once."""
    seen, done = DoneUnits(target.planned.plan), 0
    lacking: list[Part] = []
    read_back: list[Mapping[str, int]] = []
    for number in range(1, count + 1):
        part = Part(number, count)
        seal = _seal_of(parts[part], part) if part in parts else None
        if seal is None:
            lacking.append(part)
            continue
        if isinstance(sums := seal.get("read_back"), dict):
            read_back.append(sums)
        done += _count_done(target, part, parts[part], seen)
    of_target, place = target.planned.number, target.planned.place
    if lacking:
        shown = []
        for part in lacking[:MOST_SHOWN]:
            runs = targets_by_number(run, [target])
            units = units_of_part(plan.total, [plan.reader], runs, part)
            own = sum(1 for unit in units if unit[0] == of_target)
            if part not in parts:
                shown.append(f"{part} (not begun)")
                continue
            its = sum(1 for _ in read_results(parts[part].records(), target.planned.plan))
            shown.append(f"{part} ({its:,} of {own:,} tasks done)")
        more = f" and {len(lacking) - MOST_SHOWN} more" if len(lacking) > MOST_SHOWN else ""
        raise StorageError(
            f"the parts {', '.join(shown)}{more} of {place} are missing; nothing was published: do each with the same "
            "`reshard convert … --part i/n`, and commit then"
        )
    every = sum(tensor.unit_count for tensor in target.planned.plan.tensors)
    if done != every:
        raise StorageError(
            f"the parts of {place} record {done:,} of {every:,} tasks, though all are marked as done; nothing was published: remove the parts "
            "(reshard clean), and begin again"
        )
    target.read_back = read_back


def _count_done(target: OpenTarget, part: Part, records: Records, seen: DoneUnits) -> int:
    """Counts the units that the part did, and adds them to ``seen``. StorageError for one that another part did."""
    done = 0
    for result in read_results(records.records(), target.planned.plan):
        if seen.has(result.tensor, result.unit):
            raise StorageError(
                f"part {part} of {target.planned.place} records a unit that is not its own; remove the parts (reshard clean), and begin again"
            )
        seen.add(result.tensor, result.unit)
        done += 1
    return done


def _seal_of(transaction: Records, part: Part) -> Mapping[str, Any] | None:
    """The part's last record, if it says that the part is done and durable."""
    last = b""
    for record in transaction.records():
        last = record
    try:
        found = json.loads(last)
        return found if isinstance(found, dict) and found["sealed"] == str(part) else None
    except (ValueError, LookupError, RecursionError):
        return None


def take_over(target: OpenTarget, parts: HeldParts) -> None:
    """Makes the work of the parts the target's own. It was begun before, unless parts have written its files in their places."""
    if _has_files_of(target, parts):
        _take_over_in_bucket(target, parts)
        return
    for part, transaction in sorted(parts.items()):
        for results in _new(target, transaction):
            try:
                taken = _taken(target, transaction, results)
            except StorageError as error:
                raise StorageError(
                    f"a file of part {part} is not there any more: {error}; do that part again, and commit then"
                ) from error
            _count(target, taken)
    if not target.transaction.root.traits.has_versions:
        target.transaction.keep_files()  # a file that is the target by itself came from a part


def _taken(target: OpenTarget, part: Transaction, results: Sequence[Result]) -> Sequence[Result]:
    """Records results and takes their files: moved on a disk, copied by the store in a bucket."""
    whole, files = target.transaction, target.files(results)
    if not whole.root.traits.has_versions:
        # The record comes first: a recorded chunk that is not there yet is taken again after a crash.
        whole.append(record_of(results))
        move_files_of_part(part, whole, files, _heads(target, results))
        return results
    versions = copied_files(part.root, whole.root, files)
    taken = [_in_versions(target, result, versions) for result in results]
    whole.append(record_of(taken))
    return taken


def _in_versions(target: OpenTarget, result: Result, versions: Mapping[str, str]) -> Result:
    """The result with the versions of the copies of its files."""
    chunks = [
        replace(c, versions=tuple(versions[p.file] for p in target.places(result.tensor, c.index)))
        for c in result.chunks
    ]
    return replace(result, chunks=tuple(chunks))


def _heads(target: OpenTarget, results: Sequence[Result]) -> Mapping[str, tuple[bytes, int]]:
    """The first bytes and the size of each file that chunks of the results share."""
    places = (
        place
        for result in results
        for chunk in result.chunks
        for place in target.places(result.tensor, chunk.index)
    )
    shared = dict.fromkeys(place.file for place in places if place.offset is not None)
    found = {file: target.output.files.shared_file(file) for file in shared}
    return {file: (each.head, each.nbytes) for file, each in found.items()}


def _take_over_in_bucket(target: OpenTarget, parts: HeldParts) -> None:
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
