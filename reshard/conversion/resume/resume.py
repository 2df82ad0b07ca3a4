"""Resumes an interrupted run where it stopped, or begins anew.

A task is kept where every chunk that it wrote to can be trusted (``check_chunks``): it is counted, and not
done again. Everything else that the earlier run left is removed. The journal is written anew with the tasks
that are kept, so that all of its lines are from this boot.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from reshard.conversion.open_target import OpenTarget
from reshard.conversion.resume.check_chunks import (
    Chunk,
    JournaledChunk,
    damaged,
    journaled_chunks,
    missing_in_files,
    missing_in_writer,
)
from reshard.conversion.resume.identity import Identity, differences
from reshard.conversion.resume.journal import (
    Journal,
    JournalHeader,
    has_finished,
    read_finished,
    read_header,
)
from reshard.engine.target_run import DoneUnits
from reshard.engine.task import Finished
from reshard.errors import ResumeError
from reshard.formats.steps import step_name
from reshard.storage.host import boot_id, host_name
from reshard.storage.local import storage_errors
from reshard.storage.staging import Staging, emptied, identified
from reshard.storage.syncing import fsync


def begin_or_resume(target: OpenTarget) -> Journal:
    """Takes over what an unfinished run of the same conversion left in a held folder, or begins anew.

    The writer is prepared, the accumulator counts what was kept, and ``target`` has its open journal. Raises
    ResumeError, and leaves everything as it is, where that run was another conversion.
    """
    job, staging = target.job, target.staging
    header = None if job.restart else _resumable(staging)
    if header is not None:
        _refuse_other(staging, header.identity, job.identity)
        is_same_boot = _is_same_boot(header)
        if is_same_boot or not _is_packed(target):
            return _resume(target, is_same_boot=is_same_boot)
    return _begin(target)


def _begin(target: OpenTarget) -> Journal:
    staging = emptied(target.staging)
    target.output.writer.prepare(staging.root)
    journal = Journal(staging.journal, _header(staging, target))
    return _taken(target, staging, journal, DoneUnits(target.job.plan))


def _taken(target: OpenTarget, staging: Staging, journal: Journal, done: DoneUnits) -> Journal:
    """From here on the folder is this run's."""
    target.staging, target.done, target.journal = staging, done, journal
    return journal


def _resumable(staging: Staging) -> JournalHeader | None:
    """The header of an unfinished run's journal, where there is anything to resume."""
    header = read_header(staging.journal)
    if header is None or not staging.root.is_dir() or staging.root.is_symlink():
        return None
    return header if _is_own(staging, header) and has_finished(staging.journal) else None


def _is_own(staging: Staging, header: JournalHeader) -> bool:
    """Whether the journal is of the folder or file that is there.

    What was overwritten changed places with the output, and is not the journal's. A file that the target's name leads
    to as well is published.
    """
    try:
        status = os.lstat(staging.published)
    except FileNotFoundError:
        return False
    is_published = bool(staging.file) and status.st_nlink > 1
    return status.st_ino == header.root and not is_published


def _refuse_other(staging: Staging, before: Identity, now: Identity) -> None:
    if steps := _steps(before, now):
        run, was, now_is = steps
        raise ResumeError(
            f"an unfinished run to {str(staging.target)!r} was of step {was} of {run!r}, and this one is of step "
            f"{now_is}; what it did was kept in {str(staging.folder)!r}: resume it by step={was}, or start over "
            "(restart)"
        )
    if different := differences(before, now):
        raise ResumeError(
            f"an unfinished run to {str(staging.target)!r} was another conversion: {'; '.join(different)}; "
            f"what it did was kept in {str(staging.folder)!r}: give the same again to resume it, or start "
            "over (restart)"
        )


def _steps(before: Identity, now: Identity) -> tuple[str, int, int] | None:
    """The training run and the steps of which two conversions are, where their sources differ in the step alone."""
    was, is_now = Path(before.source).parts, Path(now.source).parts
    apart = [n for n, (a, b) in enumerate(zip(was, is_now, strict=False)) if a != b]
    if len(was) != len(is_now) or len(apart) != 1:
        return None
    (at,) = apart
    old, new = step_name(was[at]), step_name(is_now[at])
    if old is None or new is None or old.prefix != new.prefix:
        return None
    return str(Path(*was[:at])), old.step, new.step


def _is_same_boot(header: JournalHeader) -> bool:
    return bool(header.boot) and (header.host, header.boot) == (host_name(), boot_id())


def _header(staging: Staging, target: OpenTarget) -> JournalHeader:
    root = staging.identity[1] if staging.identity else 0
    return JournalHeader(target.job.identity, host_name(), boot_id(), root)


def _is_packed(target: OpenTarget) -> bool:
    """Whether chunks are in databases, of which nothing is known after a reboot."""
    specs = (move.target.spec for move in target.job.plan.moves)
    first = ((s.name, next(s.storage.indices(), None)) for s in specs)
    return any(i is not None and not target.output.places(name, i) for name, i in first)


def _resume(target: OpenTarget, *, is_same_boot: bool) -> Journal:
    plan, output = target.job.plan, target.output
    staging = identified(target.staging)
    _remove_others(staging, target)
    doubted = missing_in_files(_journaled(target), output.root)
    if not is_same_boot:
        doubted |= damaged(_journaled(target), plan, output.root, target.progress)
    elif _is_packed(target):
        output.writer.prepare(staging.root)
        doubted |= missing_in_writer(_journaled(target), plan, output)
    _remove_chunks(staging, target, doubted)
    journal = _keep_others(staging, target, doubted)
    # Last: a shared file that is made anew here must not be in the place of one that the journal still describes.
    with ExitStack() as on_error:
        on_error.callback(journal.close)
        output.writer.prepare(staging.root)
        on_error.pop_all()
    return journal


def _journaled(target: OpenTarget) -> Iterator[JournaledChunk]:
    plan = target.job.plan
    return journaled_chunks(read_finished(target.staging.journal, plan), plan, target.output)


def _keep_others(staging: Staging, target: OpenTarget, doubted: set[Chunk]) -> Journal:
    """Counts the tasks that are kept, and writes them to a journal that takes the old one's place."""
    plan, path = target.job.plan, staging.next_journal
    done = DoneUnits(plan)
    with ExitStack() as on_error:
        journal = Journal(path, _header(staging, target))
        on_error.callback(journal.close)
        for task in read_finished(staging.journal, plan):
            if not any((task.result.move, part.index) in doubted for part in task.result.parts):
                target.accumulator.take(task.result)
                done.add(task.result.move, task.unit)
                journal.append([task])
        fsync(path)
        with storage_errors("replace", staging.journal):
            path.replace(staging.journal)
        target.accumulator.report_progress("")
        on_error.pop_all()
    return _taken(target, staging, journal, done)


def _remove_others(staging: Staging, target: OpenTarget) -> None:
    """Removes what no line of the journal names: half-written chunks, and the markers of a finished checkpoint."""
    named = set(_named_files(read_finished(staging.journal, target.job.plan), target))
    for file in _files(staging.root):
        if file not in named and not target.output.writer.keeps(file):
            _unlink(staging.root / file)


def _named_files(finished: Iterator[Finished], target: OpenTarget) -> Iterator[str]:
    for task in finished:
        name = target.job.plan.moves[task.result.move].target.spec.name
        for part in task.result.parts:
            yield from (place.file for place in target.output.places(name, part.index))


def _files(root: Path) -> Iterator[str]:
    """Everything below a folder that is no folder, links to folders among it."""
    folders = [""]
    while folders:
        below = folders.pop()
        with storage_errors("list", root / below), os.scandir(root / below) as found:
            entries = list(found)
        for entry in entries:
            name = f"{below}/{entry.name}" if below else entry.name
            if entry.is_dir(follow_symlinks=False):
                folders.append(name)
            else:
                yield name


def _remove_chunks(staging: Staging, target: OpenTarget, chunks: set[Chunk]) -> None:
    """Removes chunks with files of their own; in a shared file they are written over."""
    for number, index in chunks:
        name = target.job.plan.moves[number].target.spec.name
        for place in target.output.places(name, index):
            if place.offset is None:
                _unlink(staging.root / place.file)


def _unlink(path: Path) -> None:
    with storage_errors("remove", path):
        path.unlink(missing_ok=True)
