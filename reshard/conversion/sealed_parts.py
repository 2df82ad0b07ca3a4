"""The work of parts: each part seals its own, and the commit takes over that of all sealed parts.

A part keeps its files and its journal in a folder of its own. Its last record says that it is done, and follows a sync. The
commit folds the journals of all parts into the target's own. On a disk each file is moved from its part below the root of the
target, after the record that names it: a commit that is interrupted resumes, since a recorded chunk that is not there yet
is taken from its part again.

Scope: the share of a conversion that a run does. PartsRequest: the JSON record that all parts share and ``commit`` reads.

::

    {"format": "reshard.parts", "version": 1, "parts": 16, "source": "…", "max_memory": 1073741824, "workers": 8,
     "identity": {…}, "options": {"layout": {…}, "compression": "none", …}}

The first part records it; a part or a commit that comes to another key is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from reshard.arguments import Unlisted
from reshard.conversion.check_target import AS_ASKED, CheckedTarget, check_target
from reshard.conversion.conversion_key import (
    ConversionKey,
    differences,
    key_of_conversion,
    source_state,
)
from reshard.conversion.journal import key_left, read_results, record_of
from reshard.conversion.options import Target
from reshard.conversion.target_job import OpenTarget, TargetJob
from reshard.engine.books import DoneUnits
from reshard.engine.limits import Limits
from reshard.engine.task import Result
from reshard.engine.task_stream import units_of_part
from reshard.errors import (
    MissingError,
    PlanError,
    ReshardError,
    ResumeError,
    SourceChangedError,
    StorageError,
    TargetBusyError,
)
from reshard.formats.file_map import prepare_files
from reshard.formats.known_formats import format_options
from reshard.formats.registry import CheckpointPath, open_reader
from reshard.layout.changes import Changes
from reshard.layout.layout_file import LayoutFile, layout_to_mapping
from reshard.layout.layout_map import LayoutMap
from reshard.layout.read_layout import parse_layout
from reshard.planning.plans import MultiPlan
from reshard.planning.target_layouts import Layout, SameAxes
from reshard.storage.location import Location, locate
from reshard.storage.parts import (
    Part,
    claim_request,
    lock_part,
    parts_of,
    parts_request,
    refuse_replacing,
    seal_part,
    take_files,
)
from reshard.storage.transaction import Records, Transaction

FORMAT = "reshard.parts"
VERSION = 1


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


class Scope(Struct, frozen=True):
    """The share of a conversion that a run does: all of it, part i of n, or the commit of n parts.

    Attributes:
        part: the part that this run does; None for all of the conversion, and for a commit.
        options: of a part: the options of the target as plain data, as every part must give them.
        agreed: of a commit: the record that its parts share.
    """

    part: Part | None = None
    options: Mapping[str, Any] = {}
    agreed: PartsRequest | None = None

    @property
    def is_whole(self) -> bool:
        """True if no other run does a part of the conversion."""
        return self.part is None and self.agreed is None

    @property
    def is_commit(self) -> bool:
        """True if it publishes the work of parts."""
        return self.agreed is not None


WHOLE = Scope()
"""All of a conversion."""


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


def plain_options(asked: Target, checked: CheckedTarget) -> dict[str, Any]:
    """The options of a target as plain data. PlanError for a layout that no layout file can express."""
    options = checked.options
    layout = _plain_layout(options.layout)
    given = {name: getattr(asked, name) for name in (*format_options(), *AS_ASKED, "to")}
    of_file = options.layout.changes if isinstance(options.layout, LayoutFile) else Changes()
    own = {
        name: list(getattr(options.changes, name))[len(getattr(of_file, name)) :]
        for name in Changes.__struct_fields__
    }
    mapped = {} if options.given_map is None else options.given_map.plain
    plain: dict[str, Any] = json.loads(json.dumps({**given, **layout, **own, **mapped}))
    again = checked_again(checked.target, plain, Limits(options.max_memory, options.workers))
    before, after = (key_of_conversion("/", one.options, "").settings for one in (checked, again))
    if before != after:
        changed = [name for name in after if before[name] != after[name]]
        raise PlanError(
            f"{', '.join(changed)} cannot be recorded for the other parts; give a layout file, or options as plain text and numbers"
        )
    return plain


def _plain_layout(layout: Layout | None) -> dict[str, Any]:
    if layout is None:
        return {}
    if isinstance(layout, LayoutFile):
        return {"layout": layout_to_mapping(layout)}
    if isinstance(layout, SameAxes):
        mesh = layout_to_mapping(LayoutFile(layout.mesh))["mesh"]
        return {"mesh": mesh, "missing_axes": layout.missing_axes}
    raise PlanError(
        "the parts of a conversion share a layout file, but the layout is a tree or a LayoutMap; give the path or the content of "
        "a layout file (layout)"
    )


def as_layout_file(asked: Target) -> Target:
    """The target with the layout file that its LayoutMap stands for, if it has one."""
    if not isinstance(asked.layout, LayoutMap):
        return asked
    options = {name: getattr(asked, name) for name in asked.__struct_fields__}
    return Target(**{**options, "layout": asked.layout.to_mapping()})


def checked_again(path: str, options: Mapping[str, Any], limits: Limits) -> CheckedTarget:
    """The target that plain options mean."""
    given = dict(options)
    if given.get("mesh") is not None:
        given["mesh"] = parse_layout({"mesh": given["mesh"]}).mesh
    return check_target(Target(path, **given), limits)


def refuse_overwriting(target: CheckedTarget) -> None:
    """Raises PlanError for parts that would overwrite a target in a bucket."""
    if target.options.overwrite:
        refuse_replacing(target.target)


def check_same_request(scope: Scope, job: TargetJob, chosen: CheckpointPath) -> None:
    """Makes sure that a part, or a commit, belongs to the conversion of the other parts; the first part records it.

    Raises ResumeError where it is of another source, other options or another plan.
    """
    place, options = str(job.place), job.options
    if scope.agreed is not None:
        _refuse_other(scope.agreed, replace(scope.agreed, key=job.key), place)
    if scope.part is not None:
        ours = PartsRequest(
            scope.part.count,
            chosen.path,
            options.max_memory,
            options.workers,
            job.key,
            scope.options,
            chosen.unlisted,
        )
        recorded = claim_request(job.place, ours.render(), options.state)
        _refuse_other(parse_request(recorded, place), ours, place)


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
