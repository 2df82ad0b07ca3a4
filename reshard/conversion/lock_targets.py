"""Locks the targets of a run, and begins each, or resumes an earlier run to it.

Asks every host of an executor, before the run, whether it sees the source and the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from reshard.conversion.conversion_key import source_state
from reshard.conversion.finished_target import abort_own, open_result
from reshard.conversion.make_report import report_finished
from reshard.conversion.resumed import begin_or_resume, kept_where_useful
from reshard.conversion.run import Run
from reshard.conversion.sealed_parts import (
    check_same_request,
    check_sealed,
    expect_part,
    locked_parts,
)
from reshard.conversion.target_job import OpenTarget, TargetJob, open_output
from reshard.conversion.target_plan import Planned
from reshard.engine.books import Books
from reshard.engine.error_context import about_target
from reshard.engine.executor import HostsExecutor
from reshard.engine.output import TargetOutput
from reshard.errors import ReshardError, ResumeError, StorageError
from reshard.formats.base import Reader
from reshard.storage.host import host_name
from reshard.storage.local.staging import begin_attempt, has_attempt
from reshard.storage.location import locate
from reshard.storage.parts import lock_part, remove_parts
from reshard.storage.targets import check_lease, check_new, lock_target
from reshard.storage.transaction import RemoteAccess
from reshard.version import __version__


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
    executor: HostsExecutor, source: str, state: str, targets: Sequence[OpenTarget]
) -> None:
    """Raises an error that names host and path where a host has another version, source or file system.

    ``state`` is that of the source as this process sees it.
    """
    elsewhere = [t.output.elsewhere for t in targets if t.output.elsewhere is not None]
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


@contextmanager
def locked_targets(
    run: Run, planned: Planned, jobs: Sequence[TargetJob]
) -> Iterator[Sequence[OpenTarget]]:
    """Opens and locks each target for the block. If the block fails, keeps the work that a run can resume."""
    outputs = [open_output(job, planned.limits(run.executor), run.scope.part) for job in jobs]
    opened: list[OpenTarget] = []
    with ExitStack() as locks, kept_where_useful(opened, len(run.targets)):
        for job, output in zip(jobs, outputs, strict=True):
            with about_target(job.name):
                check_same_request(run.scope, job, run.chosen)
                target = _lock(run, job, output, locks)
                if run.scope.is_whole and (result := _published_meanwhile(job)) is not None:
                    abort_own(target.transaction, job.key)
                    report_finished(run, job.number, result)
                    continue
            if run.scope.agreed is not None:  # before any of their work may be removed
                check_sealed(target, planned.summary.total, run.scope.agreed.parts)
            if run.scope.part is not None:
                expect_part(target, planned.summary.total, run.scope.part)
            run.progress.expect(job.number, target.books.total_bytes, target.books.total_tasks)
            opened.append(target)
        yield opened


def _lock(run: Run, job: TargetJob, output: TargetOutput, locks: ExitStack) -> OpenTarget:
    """Locks a target for this run alone: a part locks its own folder, a commit also every part."""
    unsafe, state, part = job.options.unsafe_commit, job.options.state, run.scope.part
    parts = (
        locked_parts(locks, job.place, run.scope.agreed.parts, state) if run.scope.agreed else {}
    )
    if part is not None:
        held = lock_part(job.place, part, unsafe=unsafe, state=state)
    else:
        held = lock_target(job.place, job.file, unsafe=unsafe, state=state)
    transaction = locks.enter_context(held)
    if output.uploads is not None:
        output.uploads.check = transaction.check
    progress = run.progress.of(job.number)
    books = Books(job.plan, output, progress)
    return OpenTarget(job, transaction, output, books, progress, parts)


def _published_meanwhile(job: TargetJob) -> Reader | None:
    """The target if another run of this conversion published it while this one planned; else None."""
    return None if job.options.overwrite else open_result(str(job.place), job.key)


@contextmanager
def begin_targets(run: Run, targets: Sequence[OpenTarget]) -> Iterator[None]:
    """Begins each target, or resumes an earlier run to it; records can be appended in the block."""
    with ExitStack() as open_records:
        for target in targets:
            with about_target(target.job.name):
                _begin(run, target)
            open_records.enter_context(closing(target.transaction))
        yield


def _begin(run: Run, target: OpenTarget) -> None:
    job = target.job
    if run.scope.is_whole:
        check_new(job.place, overwrite=job.options.overwrite, file=job.file)
        _refuse_parts(target)
    if target.has_files_of_parts:
        return  # none of them may be removed
    begin_or_resume(target, prepares=run.scope.part is None)  # parts make only files of their own
    if job.by_hosts and not run.scope.is_commit:
        target.output = replace(target.output, elsewhere=target.transaction.open_to_tasks())


def _refuse_parts(target: OpenTarget) -> None:
    """Raises ResumeError where parts of a conversion were begun; removes them if a restart is asked for."""
    place, options = target.job.place, target.job.options
    if not target.transaction.has_parts():
        return
    if not target.job.restart:
        raise ResumeError(
            f"parts of a conversion to {place} were begun: do the others and commit them (reshard commit), remove them (reshard clean), or "
            "start over (restart)"
        )
    remove_parts(place, options.state)
