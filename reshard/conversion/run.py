"""Run: the request, findings and reports of one run of a conversion. Feature: a wish beside the conversion, as steps around its story.

A run has a feature only where a call, a name or a source asks for it. Each adds to the plans, may look before the first task, at the end of a
target and of the run, and gives members of the reports. Most runs have none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.conversion_key import ConversionKey, source_state
from reshard.engine.error_context import about_target
from reshard.engine.executor import HostsExecutor
from reshard.engine.progress import Progress, Stage, Tell
from reshard.errors import PlanError, ReshardError, StorageError
from reshard.formats.names import IDENTITY_NAME
from reshard.formats.registry import CheckpointPath
from reshard.storage.base import NONE, Requests
from reshard.storage.host import host_name
from reshard.storage.local.staging import begin_attempt, has_attempt
from reshard.storage.location import locate
from reshard.storage.target import traits_at
from reshard.storage.targets import check_lease
from reshard.storage.transaction import RemoteAccess
from reshard.version import __version__

if TYPE_CHECKING:
    from reshard.conversion.make_plan import JointPlan, TargetPlan
    from reshard.conversion.open_target import OpenTarget
    from reshard.engine.books import TensorResult
    from reshard.engine.limits import Limits
    from reshard.formats.base import Reader
    from reshard.planning.estimates import TimePlan

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
    """

    def __init__(self, listener: Tell | None) -> None:
        self.listener = listener
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
            hosts=_by_host(every),
        )


def _by_host(every: Collection[Progress]) -> Mapping[str, int]:
    if len(every) == 1:
        return next(iter(every)).hosts
    found: dict[str, int] = {}
    for progress in every:
        for host, nbytes in progress.hosts.items():
            found[host] = found.get(host, 0) + nbytes
    return found


class Feature:
    """A feature of one run; each of its steps does nothing by default."""

    def plan(self, plan: JointPlan, /) -> JointPlan:
        """The plans with the additions of this feature; raises what can be refused before a byte moves."""
        return plan

    def begin(self, _run: Run[Any], _targets: Sequence[OpenTarget], /) -> None:
        """Looks at a run right before its first task."""

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


def features_of_run(
    source: str, targets: Sequence[str], executor: Executor | None = None, more: Requests = NONE
) -> list[Feature]:
    """The features of a whole conversion that its places and its executor ask for.

    Args:
        more: requests that the conversion makes besides, before its plan.
    """
    found: list[Feature] = []
    if any(traits_at(place).by_requests for place in (source, *targets)):
        from reshard.conversion.most_requests import InBuckets

        found.append(InBuckets(more))
    if isinstance(executor, HostsExecutor):
        found.append(OnHosts(executor))
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


class OnHosts(Feature):
    """Makes sure that every host of an executor sees source and targets, and reports the time that was planned for them."""

    def __init__(self, executor: HostsExecutor) -> None:
        self._executor = executor
        self._planned: TimePlan | None = None

    def plan(self, plan: JointPlan, /) -> JointPlan:
        """Notes the time that several hosts need for all targets."""
        hosts = self._executor.hosts
        self._planned = None if hosts == 1 else plan.answer().time(hosts)
        return plan

    def begin(self, run: Run[Any], targets: Sequence[OpenTarget], /) -> None:
        """Raises an error that names a host with another version, source or file system."""
        if targets:
            access = [t.output.elsewhere for t in targets if t.output.elsewhere is not None]
            check_hosts(self._executor, run.source, run.keys[0].files, access)

    def end(self, run: Run[Any], _plan: JointPlan, /) -> Mapping[str, Any]:
        """The time, as planned and as it took."""
        from reshard.conversion.report import TimeReport

        return {} if self._planned is None else {"time": TimeReport(self._planned, run.seconds)}


class Seen(Struct, frozen=True):
    """The findings of one host.

    Attributes:
        version: of reshard.
        source: the state of the source; "" where it cannot be read.
        error: the reason why the source cannot be read or the target cannot be written; "" without one.
        attempts: the folder that it made in each folder of attempts; the run looks for it.
    """

    version: str
    source: str = ""
    error: str = ""
    attempts: tuple[str, ...] = ()


def check_hosts(
    executor: HostsExecutor, source: str, state: str, elsewhere: Sequence[RemoteAccess]
) -> None:
    """Raises an error that names host and path where a host has another version, source or file system.

    Args:
        state: of the source as this process sees it.
        elsewhere: the access of tasks on other hosts to each target.
    """
    found = executor.on_each_host(partial(seen_here, source, elsewhere))
    for host, seen in found.items():
        if seen.version != __version__:
            raise ReshardError(
                f"host {host!r} has reshard {seen.version}, but this run is of {__version__}; install the same version on every host"
            )
        if seen.error:
            is_named = repr(host) in seen.error
            raise StorageError(seen.error if is_named else f"host {host!r}: {seen.error}")
        if seen.source != state:
            raise StorageError(
                f"host {host!r} sees another source at {source!r}: the names, sizes or times of its files are not those that "
                f"{host_name()!r} sees; give a path on a file system that all hosts share, or a URL of a bucket"
            )
        for each, made in zip(elsewhere, seen.attempts, strict=True):
            if made and not has_attempt(each.attempts, made):
                raise StorageError(
                    f"host {host!r} writes to another file system at {each.attempts!r} than {host_name()!r}; give a target on a file system "
                    "that all hosts share, or a URL of a bucket"
                )


def seen_here(source: str, elsewhere: Sequence[RemoteAccess]) -> Seen:
    """The findings of this host; runs on the host itself."""
    try:
        made = tuple(begin_attempt(e.attempts) if e.attempts else "" for e in elsewhere)
        for each in elsewhere:
            if each.lease is not None:
                check_lease(*each.lease)
        return Seen(__version__, source_state(locate(source)), attempts=made)
    except ReshardError as error:
        return Seen(__version__, error=str(error))
