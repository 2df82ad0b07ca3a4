"""Makes a checkpoint of the parts of a conversion: checks that every unit is there once, proves, and publishes.

The journals of all parts are folded into the target's own. On a disk each file is moved from its part below the root of the
target, after the record that names it: a commit that is interrupted resumes, since a recorded chunk that is not there yet
is taken from its part again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing

from msgspec import to_builtins
from msgspec.structs import replace

from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.finish import commit, finish
from reshard.conversion.make_report import already_done, conversion_report
from reshard.conversion.parts.request import PartsRequest, parse_request, refuse_other
from reshard.conversion.prepare import Planned, plan_targets
from reshard.conversion.report import ConversionReport
from reshard.conversion.resume.already_done import open_result, remove_leftovers
from reshard.conversion.resume.cleanup import kept_where_useful, removed_once_published
from reshard.conversion.resume.identity import Identity, identify, source_state
from reshard.conversion.resume.journal import read_results, record_of
from reshard.conversion.resume.resume import begin_or_resume
from reshard.conversion.target_job import OpenTarget, TargetJob, open_output, target_jobs
from reshard.conversion.total_progress import TotalProgress
from reshard.engine.books import Books, DoneUnits
from reshard.engine.progress import Progress
from reshard.engine.share import Share
from reshard.engine.task import Result
from reshard.engine.task_stream import share_units
from reshard.errors import MissingError, ReshardError, StorageError, TargetBusyError
from reshard.formats.carry_out import prepare_files
from reshard.formats.checkpoint_path import CheckpointPath
from reshard.formats.registry import open_reader
from reshard.planning.multi_plan import MultiPlan
from reshard.storage.location import Location, locate
from reshard.storage.parts import Part, held_part, parts_of, remove_parts, request_of, take_files
from reshard.storage.targets import held_target, target_text
from reshard.storage.transaction import Records, Transaction

RESULTS_AT_ONCE = 256
"""So many results of a part are recorded, and then their files moved."""

MOST_SHOWN = 16

Parts = Mapping[Part, Transaction]


def commit_parts(
    target: str,
    state: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> ConversionReport:
    """Publishes the target that all parts have made.

    Raises MissingError where no part was begun, StorageError naming the parts that are missing or not done, TargetBusyError
    where one is at work, SourceChangedError and VerificationError as a conversion does.
    """
    started = time.monotonic()
    place = locate(target_text(target))
    request = _request(place, state)
    if request is None:
        seconds = time.monotonic() - started
        return already_done("", target, open_reader(str(place)).tensors.values(), seconds)
    checked = request.target(str(place))
    chosen = CheckpointPath.at(request.source, request.unlisted)
    found = source_state(chosen.root)
    identity = identify(request.source, checked.options, found, request.unlisted)
    result = None if checked.options.overwrite else open_result(str(place), identity)
    if result is not None:  # an earlier commit was interrupted after it published
        remove_parts(place, state)
        remove_leftovers(checked, identity)
        seconds = time.monotonic() - started
        return already_done(request.source, target, result.tensors.values(), seconds)
    planned = plan_targets(chosen, [checked], by_hosts=True)
    job = _job(planned, checked, identity, request)
    with ExitStack() as held:
        parts = _held(held, place, request.parts, state)
        unsafe = checked.options.unsafe_commit
        whole = held.enter_context(held_target(place, job.file, unsafe=unsafe, state=state))
        output = open_output(job, planned.limits(None))
        books = Books(job.plan, output, progress)
        running = OpenTarget(job, whole, output, books, progress)
        _check_whole(running, planned.summary.total, parts, request.parts)
        report = _committed(running, planned, parts, place, progress, started)
        for transaction in parts.values():
            transaction.abort()
    remove_parts(place, state)
    return replace(report, source=request.source, target=target)


def _request(place: Location, state: str | None) -> PartsRequest | None:
    """What the parts agreed on; None where they were committed before, and the target is the result."""
    data = request_of(place, state)
    if data is not None:
        return parse_request(data, str(place))
    if _is_made_by_us(place):
        return None
    raise MissingError(
        f"no part of a conversion to {place} was begun; do each with `reshard convert SRC {place} … --part i/n`, and commit then"
    )


def _is_made_by_us(place: Location) -> bool:
    try:
        return bool(open_reader(str(place)).conversion)
    except ReshardError:
        return False


def _job(
    planned: Planned, checked: CheckedTarget, identity: Identity, request: PartsRequest
) -> TargetJob:
    """The target as it is planned. Raises ResumeError where the parts are of another source or plan."""
    (job,) = target_jobs(planned, [checked], [identity], {})
    ours = replace(request, identity=job.identity)
    refuse_other(request, ours, checked.target)
    return job


def _held(
    stack: ExitStack, place: Location, count: int, state: str | None
) -> dict[Part, Transaction]:
    """The parts that were begun, held until the stack ends."""
    begun = [part for part in parts_of(place, state) if part.count == count]
    found: dict[Part, Transaction] = {}
    for part in begun:
        try:
            found[part] = stack.enter_context(held_part(place, part, unsafe=True, state=state))
        except TargetBusyError as error:
            raise TargetBusyError(
                f"part {part} of {place} is at work now; wait for it, and commit then: {error}"
            ) from None
    return found


def _committed(
    running: OpenTarget,
    planned: Planned,
    parts: Parts,
    place: Location,
    progress: Callable[[Progress], None] | None,
    started: float,
) -> ConversionReport:
    job, limits = running.job, planned.limits(None)
    total = TotalProgress(progress)
    total.expect(0, running.books.total_bytes, job.plan.tasks)
    opened: list[OpenTarget] = []
    with kept_where_useful(opened):
        opened.append(running)
        with closing(running.transaction):
            _fold(running, parts, place)
        results = finish(running, limits, total)
        commit(running)
        removed_once_published(running)
    return conversion_report(job, results, time.monotonic() - started, 0)


def _check_whole(running: OpenTarget, plan: MultiPlan, parts: Parts, count: int) -> None:
    """Raises StorageError, naming the parts, unless every unit of the plan was done once, by the part whose it is."""
    seen = DoneUnits(running.job.plan)
    lacking: list[str] = []
    for number in range(1, count + 1):
        part = Part(number, count)
        own = list(share_units(plan, [running.job.reader], running.run, Share(number, count)))
        if part not in parts:
            lacking.append(f"{part} (not begun)")
            continue
        allowed, done = DoneUnits(running.job.plan), 0
        for tensor, unit in own:
            allowed.add(tensor, unit)
        for result in read_results(parts[part].records(), running.job.plan):
            tensor, unit = result.tensor, result.unit
            if not allowed.has(tensor, unit) or seen.has(tensor, unit):
                raise StorageError(
                    f"part {part} of {running.job.place} records a unit that is not its own; remove the parts (reshard clean), and begin again"
                )
            seen.add(tensor, unit)
            done += 1
        if done < len(own) or not _is_sealed(parts[part], part):
            lacking.append(f"{part} ({done:,} of {len(own):,} tasks done)")
    if lacking:
        more = f" and {len(lacking) - MOST_SHOWN} more" if len(lacking) > MOST_SHOWN else ""
        raise StorageError(
            f"the parts {', '.join(lacking[:MOST_SHOWN])}{more} of {running.job.place} are missing; nothing was published: do each with the same "
            "`reshard convert … --part i/n`, and commit then"
        )


def _is_sealed(transaction: Records, part: Part) -> bool:
    """Whether the part says that it is done and durable."""
    last = b""
    for record in transaction.records():
        last = record
    try:
        return bool(json.loads(last) == {"sealed": str(part)})
    except (ValueError, RecursionError):
        return False


def _fold(running: OpenTarget, parts: Parts, place: Location) -> None:
    """Makes the work of the parts the target's own."""
    if not running.transaction.root.traits.renames:
        _fold_in_bucket(running, parts)
        return
    begin_or_resume(running)
    for part, transaction in sorted(parts.items()):
        for results in _new(running, transaction):
            running.transaction.append(record_of(results))
            try:
                take_files(place, part, running.transaction.root, _files(running, results))
            except StorageError as error:
                raise StorageError(
                    f"a file of part {part} is not there any more: {error}; do that part again, and commit then"
                ) from error
            _count(running, results)
    running.transaction.close_elsewhere()


def _fold_in_bucket(running: OpenTarget, parts: Parts) -> None:
    """The objects are in their places, so that the records are all there is to fold."""
    running.done = DoneUnits(running.job.plan)
    running.transaction.adopt()

    def records() -> Iterator[str]:
        for _, transaction in sorted(parts.items()):
            for results in _new(running, transaction):
                _count(running, results)
                yield record_of(results)

    running.transaction.rewrite(to_builtins(running.job.identity), records())
    prepare_files(running.output.files, running.noted_root)


def _new(running: OpenTarget, transaction: Records) -> Iterator[Sequence[Result]]:
    """The results of a part that the target does not have, some at a time."""
    results: list[Result] = []
    for result in read_results(transaction.records(), running.job.plan):
        if running.done is not None and not running.done.has(result.tensor, result.unit):
            results.append(result)
        if len(results) == RESULTS_AT_ONCE:
            yield results
            results = []
    if results:
        yield results


def _count(running: OpenTarget, results: Sequence[Result]) -> None:
    for result in results:
        running.books.take(result, is_resumed=False)
        if running.done is not None:
            running.done.add(result.tensor, result.unit)
    running.books.report_progress(running.job.plan.tensors[results[-1].tensor].name)


def _files(running: OpenTarget, results: Sequence[Result]) -> dict[str, None]:
    """The files of some results, each once."""
    tensors = running.job.plan.tensors
    return {
        place.file: None
        for result in results
        for chunk in result.chunks
        for place in running.output.places(tensors[result.tensor].name, chunk.index)
    }
