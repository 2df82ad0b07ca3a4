"""The work of parts: each part seals its own, and the commit takes over that of all sealed parts.

A part keeps its files and its journal in a folder of its own. Its last record says that it is done, and follows a sync. The
commit folds the journals of all parts into the target's own. On a disk each file is moved from its part below the root of the
target, after the record that names it: a commit that is interrupted resumes, since a recorded chunk that is not there yet
is taken from its part again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack

from msgspec import to_builtins

from reshard.conversion.parts.request import PartsRequest, parse_request
from reshard.conversion.resume.conversion_key import source_state
from reshard.conversion.resume.journal import read_results, record_of
from reshard.conversion.target_job import OpenTarget
from reshard.engine.books import DoneUnits
from reshard.engine.task import Result
from reshard.engine.task_stream import units_of_part
from reshard.errors import (
    MissingError,
    ReshardError,
    SourceChangedError,
    StorageError,
    TargetBusyError,
)
from reshard.formats.carry_out import prepare_files
from reshard.formats.registry import open_reader
from reshard.planning.plans import MultiPlan
from reshard.storage.location import Location, locate
from reshard.storage.parts import Part, lock_part, parts_of, parts_request, seal_part, take_files
from reshard.storage.transaction import Records, Transaction

RESULTS_AT_ONCE = 256
"""Results of a part that are recorded at once, before their files are moved."""

MOST_SHOWN = 16


def expect_part(target: OpenTarget, plan: MultiPlan, part: Part) -> None:
    """Sets the totals of the books to those of the part."""
    units = list(units_of_part(plan, [target.job.reader], target.run, part))
    tensors = target.job.plan.tensors
    total_bytes = sum(tensors[tensor].unit_bytes(unit) for tensor, unit in units)
    target.books.expect(total_bytes, len(units))


def seal(target: OpenTarget, part: Part, source: str) -> None:
    """Makes the work of a part durable, and records that it is done; SourceChangedError where its source changed."""
    if source_state(locate(source)) != target.job.key.files:
        raise SourceChangedError(
            f"the source {source!r} changed while it was read; what this part did was discarded; run again when nothing writes to it"
        )
    seal_part(target.job.place, part, target.transaction, json.dumps({"sealed": str(part)}))


def agreed_request(place: Location, state: str | None) -> PartsRequest | None:
    """The record that the parts of a target share; None where they were committed before, and the target is the result.

    Raises MissingError where no part was begun.
    """
    data = parts_request(place, state)
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


def check_sealed(target: OpenTarget, plan: MultiPlan, count: int) -> None:
    """Raises StorageError, naming the parts, unless every unit of the plan was done once, by its own part."""
    parts, seen = target.parts, DoneUnits(target.job.plan)
    lacking: list[str] = []
    for number in range(1, count + 1):
        part = Part(number, count)
        own = list(units_of_part(plan, [target.job.reader], target.run, part))
        if part not in parts:
            lacking.append(f"{part} (not begun)")
            continue
        done = _count_done(target, part, own, seen)
        if done < len(own) or not _is_sealed(parts[part], part):
            lacking.append(f"{part} ({done:,} of {len(own):,} tasks done)")
    if lacking:
        more = f" and {len(lacking) - MOST_SHOWN} more" if len(lacking) > MOST_SHOWN else ""
        raise StorageError(
            f"the parts {', '.join(lacking[:MOST_SHOWN])}{more} of {target.job.place} are missing; nothing was published: do each with the same "
            "`reshard convert … --part i/n`, and commit then"
        )


def _count_done(
    target: OpenTarget, part: Part, own: Iterable[tuple[int, int]], seen: DoneUnits
) -> int:
    """Counts the units that the part did, and adds them to ``seen``. StorageError for one that is not its own, or done twice."""
    allowed, done = DoneUnits(target.job.plan), 0
    for tensor, unit in own:
        allowed.add(tensor, unit)
    for result in read_results(target.parts[part].records(), target.job.plan):
        tensor, unit = result.tensor, result.unit
        if not allowed.has(tensor, unit) or seen.has(tensor, unit):
            raise StorageError(
                f"part {part} of {target.job.place} records a unit that is not its own; remove the parts (reshard clean), and begin again"
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


def take_over(target: OpenTarget) -> None:
    """Makes the work of the parts the target's own. On a disk the target was begun before, in a bucket it was not."""
    parts = target.parts
    if target.has_files_of_parts:
        _take_over_in_bucket(target)
        return
    for part, transaction in sorted(parts.items()):
        for results in _new(target, transaction):
            target.transaction.append(record_of(results))
            try:
                take_files(target.job.place, part, target.transaction.root, _files(target, results))
            except StorageError as error:
                raise StorageError(
                    f"a file of part {part} is not there any more: {error}; do that part again, and commit then"
                ) from error
            _count(target, results)
    target.transaction.close_to_tasks()


def _take_over_in_bucket(target: OpenTarget) -> None:
    """Takes over the records alone, since the objects are in their places."""
    target.done = DoneUnits(target.job.plan)
    target.transaction.keep_files()

    def records() -> Iterator[str]:
        for _, transaction in sorted(target.parts.items()):
            for results in _new(target, transaction):
                _count(target, results)
                yield record_of(results)

    target.transaction.rewrite(to_builtins(target.job.key), records())
    prepare_files(target.output.files, target.recording_root)


def _new(target: OpenTarget, transaction: Records) -> Iterator[Sequence[Result]]:
    """The results of a part that the target lacks, some at a time."""
    results: list[Result] = []
    for result in read_results(transaction.records(), target.job.plan):
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
    target.books.report_progress(target.job.plan.tensors[results[-1].tensor].name)


def _files(target: OpenTarget, results: Sequence[Result]) -> dict[str, None]:
    """The files of some results, each once."""
    tensors = target.job.plan.tensors
    return {
        place.file: None
        for result in results
        for chunk in result.chunks
        for place in target.output.places(tensors[result.tensor].name, chunk.index)
    }
