"""Run: the request, findings and reports of one run of a conversion. Feature: a wish beside the conversion, as steps around its story.

A run has a feature only where a call, a name or a source asks for it. Each adds to the plans, may
look at the end of a target and of the run, and gives members of the reports. Most runs have none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.conversion_key import ConversionKey
from reshard.engine.error_context import about_target
from reshard.engine.progress import Progress, Stage, Tell
from reshard.errors import PlanError
from reshard.formats.names import IDENTITY_NAME
from reshard.formats.registry import CheckpointPath
from reshard.storage.base import NONE, Requests
from reshard.storage.target import traits_at

if TYPE_CHECKING:
    from reshard.conversion.make_plan import JointPlan, TargetPlan
    from reshard.conversion.open_target import OpenTarget
    from reshard.engine.books import TensorResult
    from reshard.engine.limits import Limits
    from reshard.formats.base import Reader

R = TypeVar("R")


class Run(Struct, Generic[R]):
    """The state that the steps of a conversion share, and the report of each target that is done.

    Attributes:
        chosen, targets: with absolute paths: a worker of the executor may have another working directory,
            and that of the caller may change meanwhile.
        keys: of the conversion to each target.
        read_bytes: encoded bytes that this run read from the source, for all targets together.
        members: those of the report of all targets that features gave.
    """

    chosen: CheckpointPath
    targets: Sequence[CheckedTarget]
    executor: Executor | None
    progress: TotalProgress
    before_publish: Callable[[str], None] | None
    started: float
    keys: Sequence[ConversionKey] = ()
    reports: dict[int, R] = field(default_factory=dict)
    read_bytes: int = 0
    members: dict[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return self.chosen.path

    @property
    def is_unfinished(self) -> bool:
        """True if a target needs more work."""
        return len(self.reports) < len(self.targets)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


def start_run(
    chosen: CheckpointPath,
    targets: Sequence[CheckedTarget],
    progress: Callable[[Progress], None] | None,
    executor: Executor | None = None,
    before_publish: Callable[[str], None] | None = None,
) -> Run[Any]:
    """A new run, from here on with absolute paths."""
    chosen = replace(chosen, path=str(chosen.root))
    targets = [replace(target, target=str(target.place)) for target in targets]
    total = TotalProgress(progress)
    return Run(chosen, targets, executor, total, before_publish, time.monotonic())


class TotalProgress:
    """Adds up the progress of several targets while bytes are copied.

    A target reports at the latest when its first task is done; until then its bytes are known from
    ``expect``.

    Attributes:
        listener: gets the sums; None without one.
        is_copied: true if parts have copied everything, and their progress was told.
    """

    def __init__(self, listener: Tell | None) -> None:
        self.listener = listener
        self.is_copied = False
        self._latest: dict[int, Progress] = {}

    def of(self, number: int) -> Tell | None:
        """The function that target ``number`` calls with its own progress; None without a listener."""
        return None if self.listener is None else partial(self._add, self.listener, number)

    def expect(self, number: int, total_bytes: int, tasks: int) -> None:
        """Counts a target that has no task done yet."""
        self._latest[number] = Progress(0, total_bytes, 0, tasks, "")

    def end(self, stage: Stage) -> None:
        """Reports that everything is copied, and the stage that comes now."""
        if self.listener is None:
            return
        total = self._sum("")
        self.listener(
            replace(total, moved_bytes=total.total_bytes, tasks_done=total.tasks, stage=stage)
        )

    def _add(self, listener: Tell, number: int, progress: Progress) -> None:
        if progress.stage != "copying":
            listener(progress)
            return
        self._latest[number] = progress
        if not self.is_copied:
            listener(self._sum(progress.tensor))

    def _sum(self, tensor: str) -> Progress:
        every = self._latest.values()
        return Progress(
            sum(p.moved_bytes for p in every),
            sum(p.total_bytes for p in every),
            sum(p.tasks_done for p in every),
            sum(p.tasks for p in every),
            tensor,
            resumed_bytes=sum(p.resumed_bytes for p in every),
        )


class Feature:
    """A feature of one run; each of its steps does nothing by default."""

    def plan(self, plan: JointPlan, /) -> JointPlan:
        """The plans with the additions of this feature; raises what can be refused before a byte moves."""
        return plan

    def prove(
        self,
        _target: OpenTarget,
        _results: Sequence[TensorResult],
        _limits: Limits,
        _tell: Tell | None,
        /,
    ) -> Mapping[str, Any]:
        """Members for the report of a target that is complete, and has not appeared yet; it may still get files."""
        return {}

    def end(self, _run: Run[Any], _plan: JointPlan, /) -> Mapping[str, Any]:
        """Members for the report of a run that is done."""
        return {}


def features_of(
    chosen: CheckpointPath, targets: Sequence[CheckedTarget], reader: Reader
) -> Iterator[Feature]:
    """The features that options, names and source ask for, of a whole conversion and of parts; most have none."""
    if reader.version is not None or any(target.version is not None for target in targets):
        yield Versions()
    asked = {target.identity for target in targets} - {"none"}
    if asked - {None} or (asked and (chosen.root.view() / IDENTITY_NAME).exists()):
        from reshard.conversion.identity import Identity

        yield Identity()


def features_of_run(source: str, targets: Sequence[str], more: Requests = NONE) -> list[Feature]:
    """The features of a whole conversion that its places ask for.

    Args:
        more: requests that the conversion makes besides, before its plan.
    """
    found: list[Feature] = []
    if any(traits_at(place).by_requests for place in (source, *targets)):
        from reshard.conversion.most_requests import InBuckets

        found.append(InBuckets(more))
    return found


class Versions(Feature):
    """Numbers the weights of targets: as a name says, or as the deltas over the source make them."""

    def plan(self, plan: JointPlan, /) -> JointPlan:
        """The targets with the versions that their indices record.

        Raises PlanError where the name says another version than the deltas make. A map or rules make another version, which only a
        name can number.
        """
        return replace(plan, targets=tuple(map(self._numbered, plan.targets)))

    def _numbered(self, planned: TargetPlan) -> TargetPlan:
        named, version = planned.target.version, planned.reader.version
        is_as_made = planned.target.given_map is None and not planned.target.changes
        made = version.id if version is not None and is_as_made else None
        if made is not None and named not in (None, made):
            from reshard.formats.delta.index_values import folder_of

            with about_target(planned.name):
                raise PlanError(
                    f"the target {str(planned.place)!r} has the name of the version {named}, but the deltas make the version {made}, on "
                    f"which receivers would put the wrong deltas; name it {folder_of(made)}, or by no version"
                )
        checkpoint = replace(planned.checkpoint, version=made if named is None else named)
        return replace(planned, checkpoint=checkpoint)
