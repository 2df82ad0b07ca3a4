"""Converts and publishes versions: the only place of the server that converts, merges, applies and makes deltas, whole or in parts.

The library's progress is passed on to the server at most twice a second, with the rate and the time left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import reshard
from reshard.answers.record import answer_of
from reshard.errors import (
    FormatError,
    MemoryBudgetError,
    MissingError,
    PlanError,
    ResumeError,
    SourceChangedError,
    TargetBusyError,
    TargetExistsError,
    VerificationError,
)
from reshard.storage.location import locate
from reshard_server.worker.moved_over_time import MovedOverTime

if TYPE_CHECKING:
    from reshard import ConversionReport, Progress


TARGET_BUSY = TargetBusyError

T = TypeVar("T")


def convert_all(
    request: dict[str, Any],
    progress: ProgressThrottle,
    before_publish: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Converts the source to all targets in one run.

    Returns ``reports``, as ``docs/reference/json-output.md`` describes them, and ``read_bytes``, the encoded bytes of the
    source that this run read for all targets.

    If an earlier attempt's files cannot be resumed, the target is started over: the files belong to this
    conversion, and the source or the server's settings changed since.
    """
    (reports, read_bytes), warnings = _starting_over(
        request, lambda restarted: _run(request, restarted, progress, before_publish)
    )
    documents = [
        with_warning(answer_of("convert", report), warnings.get(number))
        for number, report in enumerate(reports)
    ]
    return {"reports": documents, "read_bytes": read_bytes}


def _starting_over(
    request: dict[str, Any], run: Callable[[Collection[int]], T]
) -> tuple[T, dict[int, str]]:
    """The result of a run, given the numbers of the targets to start over, and a warning for each of these.

    A target is started over once, and only if its files belong to this conversion.
    """
    warnings: dict[int, str] = {}
    while True:
        try:
            return run(warnings.keys()), warnings
        except ResumeError as error:
            number = _target_of(error, request)
            if not request["begun"] or number in warnings:
                raise
            warnings[number] = (
                f"the work of an earlier attempt could not be resumed, so the target was started over: {error}"
            )


def begin_parts(request: dict[str, Any]) -> dict[str, Any]:
    """Plans the parts and records their request at the targets: the members of ``jobs.attempt.Begun``.

    What was begun for another state of the source, or by another version, is started over at all targets.
    """

    def run(restarted: Collection[int]) -> reshard.BegunParts:
        everything = range(len(request["targets"])) if restarted else ()
        limits = {name: request[name] for name in _LIMITS} | request.get("computed", {})
        targets = _targets(request, everything)
        return reshard.begin_parts(request["source"], targets, **request["begin"], **limits)

    made, warnings = _starting_over(request, run)
    facts = {"parts": made.parts, "total_bytes": made.total_bytes}
    return {**facts, "already_done": made.already_done, "anew": bool(warnings)}


FEW_PARTS = 64
"""With more parts the times of each draw the curve well enough, and intervals would be a megabyte of each answer."""


def join_part(request: dict[str, Any], progress: ProgressThrottle) -> dict[str, Any]:
    """Does the part that the request names, by the record at its first target."""
    target = request["targets"][0]["target"]
    if int(request["join"].partition("/")[2]) > FEW_PARTS:
        progress.over_time = None
    made = reshard.join_part(target, request["join"], progress=progress)
    moved, tasks = (made.moved_bytes,) * 2, (made.tasks,) * 2
    # Small parts report nothing, but the conversion's progress is the sum of all.
    progress(reshard.Progress(*moved, *tasks, "", "copying", made.resumed_bytes))
    return {"reports": [], "read_bytes": made.read_bytes}


def commit_parts(
    request: dict[str, Any],
    progress: ProgressThrottle,
    before_publish: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Publishes what the parts made; returns what ``convert_all`` does."""
    targets = [requested["target"] for requested in request["targets"]]
    ways: dict[str, Any] = {"progress": progress, "before_publish": before_publish}
    made = reshard.commit_all(targets[0], **ways)
    reports = list(made.reports)
    # Where all targets were published before, no record says any more that they belong together.
    reports += [reshard.commit_all(each, **ways).reports[0] for each in targets[len(reports) :]]
    documents = [answer_of("convert", report) for report in reports]
    return {"reports": documents, "read_bytes": made.read_bytes}


def _target_of(error: ResumeError, request: dict[str, Any]) -> int:
    """The number of the target that an error names; 0 if it names none, since there is only one."""
    paths = [str(locate(requested["target"])) for requested in request["targets"]]
    return 0 if error.target is None else paths.index(error.target)


def with_warning(report: dict[str, Any], warning: str | None) -> dict[str, Any]:
    """The report with one more warning; None for none."""
    return {**report, "warnings": [*report["warnings"], *([warning] if warning else [])]}


def _run(
    request: dict[str, Any],
    restarted: Collection[int],
    progress: ProgressThrottle,
    before_publish: Callable[[str], None] | None,
) -> tuple[Sequence[ConversionReport], int]:
    """The reports, and the encoded bytes that this run read."""
    targets = _targets(request, restarted)
    shared: dict[str, Any] = {
        **{name: request[name] for name in _LIMITS},
        **request.get("computed", {}),
        "progress": progress,
        "before_publish": before_publish,
    }
    if request.get("deltas") or request.get("merge"):
        options = {n: value for n, value in request["targets"][0].items() if n != "target"}
        options["restart"] = targets[0].restart
        options |= shared
        source, target = request["source"], targets[0].target
        if (merge := request.get("merge")) is None:
            made = reshard.apply(source, request["deltas"], target, **options)
        else:
            how = {**merge, "from_": merge["from_checkpoint"]}
            del how["from_checkpoint"], how["others"]
            made = reshard.merge([source, *merge["others"]], target, **how, **options)
        return (made,), made.read_bytes
    if (ray := request.get("ray")) is None:
        all_made = reshard.convert_all(request["source"], targets, **shared)
        return all_made.reports, all_made.read_bytes
    from reshard.executors.ray import RayExecutor

    with RayExecutor(ray["address"]) as executor:
        ways = {"executor": executor, "parts": ray["parts"]}
        all_made = reshard.convert_all(request["source"], targets, **shared, **ways)
    return all_made.reports, all_made.read_bytes


_LIMITS = ("unlisted", "max_memory", "workers", "max_growth")


def _targets(request: dict[str, Any], restarted: Collection[int]) -> list[reshard.Target]:
    """The targets of a request; ``restarted``: the numbers of those to start over besides."""
    return [
        reshard.Target(
            **{**requested, "restart": requested.get("restart", False) or number in restarted}
        )
        for number, requested in enumerate(request["targets"])
    ]


RULES = ("layout", "select", "drop", "rename", "cast", "map", "sizes", "reverse")

NO_DELTA = (
    PlanError,
    FormatError,
    MissingError,
    SourceChangedError,
    VerificationError,
    ResumeError,
    TargetExistsError,
)
"""Refusals because of the two checkpoints, or of a full version that another attempt began; a full version may still be possible."""


def publish_version(
    request: dict[str, Any],
    progress: ProgressThrottle,
    before_publish: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Makes the delta of a request, or the full version in its place if the request allows that.

    Returns ``reports``, with the document of ``reshard delta``, its tensors as a list, or of ``reshard convert``, and ``read_bytes``, which is
    None for a delta.

    An attempt may have published before its process ended; then its version is compared, and stays.
    """
    asked = {**request["delta"]}
    old, or_full = asked.pop("old"), asked.pop("or_full")
    [requested] = request["targets"]
    try:
        made = reshard.delta(
            old,
            request["source"],
            requested["target"],
            **{name: requested[name] for name in RULES},
            **asked,
            **{name: request[name] for name in ("unlisted", "max_memory", "workers")},
            again=request["begun"],
            progress=progress,
            before_publish=before_publish,
        )
    except NO_DELTA as refused:
        # A target that exists may be the full version of an earlier attempt.
        is_another = isinstance(refused, TargetExistsError) and not request["begun"]
        if not or_full or isinstance(refused, MemoryBudgetError) or is_another:
            raise
        [requested] = request["targets"]
        full = {**requested, "to": "safetensors", "restart": not request["begun"]}
        whole = convert_all({**request, "targets": [full]}, progress, before_publish)
        warning = f"a full version was published, since no delta could be made: {refused}"
        return {**whole, "reports": [with_warning(each, warning) for each in whole["reports"]]}
    report = answer_of("delta", made)
    return {
        "reports": [{**report, "tensors": [*report["tensors"].values()]}],  # as all reports here
        "read_bytes": None,
    }


REPORT_SECONDS = 0.5
NAME_CHARACTERS = 450
"""Length limit of a tensor's name, at most six bytes each: a message must fit into one atomic write of a pipe, with 1 KiB of ``over_time``."""


@dataclass
class ProgressThrottle:
    """Called after each task; reports at most twice a second, whenever the stage changes, and when all is moved.

    Attributes:
        over_time: what was moved so far, to report too.
    """

    report: Callable[[dict[str, Any]], None]
    clock: Callable[[], float] = time.monotonic
    over_time: MovedOverTime | None = None
    _first: tuple[float, int] | None = None
    _reported_at: float = float("-inf")
    _stage: str = ""
    _resumed: int = 0
    _is_whole: bool = False

    def __call__(self, progress: Progress) -> None:
        now = self.clock()
        if self.over_time is not None:
            self.over_time.add(now, progress.moved_bytes)
        if self._first is None:
            self._first = now, progress.moved_bytes
        self._resumed = max(self._resumed, progress.resumed_bytes)
        was_whole = self._is_whole
        self._is_whole = progress.moved_bytes >= progress.total_bytes
        is_news = progress.stage != self._stage or (self._is_whole and not was_whole)
        if is_news or now - self._reported_at >= REPORT_SECONDS:
            self._reported_at, self._stage = now, progress.stage
            self.report(self._document(progress, now))

    def _document(self, progress: Progress, now: float) -> dict[str, Any]:
        moved, total = progress.moved_bytes, progress.total_bytes
        # Bytes that an earlier attempt moved do not count.
        began_at, first_moved = self._first or (now, moved)
        seconds, done = now - began_at, moved - first_moved
        rate = done / seconds if seconds > 0 and done > 0 else None
        return {
            "stage": progress.stage,
            "moved_bytes": moved,
            "total_bytes": total,
            "resumed_bytes": self._resumed,
            "tasks_done": progress.tasks_done,
            "tasks": progress.tasks,
            "tensor": progress.tensor[:NAME_CHARACTERS],
            "bytes_per_second": rate,
            "seconds_left": (total - moved) / rate if rate else None,
            **({} if self.over_time is None else {"over_time": self.over_time.document()}),
        }
