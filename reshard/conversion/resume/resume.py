"""Resumes an interrupted run where it stopped, or starts anew.

A task is kept where every chunk that it wrote to can be trusted (``check_chunks``); what it did is
counted, and it is not done again. Everything else that the earlier run left is removed. The journal is
written anew with what was kept, so that its lines are all of this boot.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct

from reshard.conversion.resume.check_chunks import Chunk, damaged, journaled_chunks, missing
from reshard.conversion.resume.identity import Identity, differences
from reshard.conversion.resume.journal import (
    Header,
    Journal,
    has_finished,
    read_finished,
    read_header,
)
from reshard.engine.accumulator import Accumulator
from reshard.engine.progress import Progress
from reshard.engine.task import Finished
from reshard.engine.task_stream import DoneUnits, Ends
from reshard.errors import ResumeError
from reshard.formats.steps import step_name
from reshard.planning.move import Plan
from reshard.storage.host import boot_id, host_name
from reshard.storage.local import storage_errors
from reshard.storage.staging import Staging, emptied, identified
from reshard.storage.syncing import fsync


class Work(Struct, frozen=True):
    """What is to be done.

    Attributes:
        ledger: counts what is done; empty at first.
    """

    identity: Identity
    plan: Plan
    ends: Ends
    ledger: Accumulator
    progress: Callable[[Progress], None] | None = None


class StartedRun(Struct, frozen=True):
    """A run that may write: its folder, its journal, and what was done before it."""

    staging: Staging
    journal: Journal
    done: DoneUnits


def begin(staging: Staging, work: Work, *, restart: bool) -> StartedRun:
    """Takes over what an unfinished run of the same conversion left in a held folder, or starts anew.

    The writer is prepared, and ``work.ledger`` counts what was kept. Raises ResumeError, and leaves
    everything as it is, where that run was another conversion.
    """
    header = None if restart else _left(staging)
    if header is not None:
        _refuse_other(staging, header.identity, work.identity)
        if _is_same_boot(header) or not _is_packed(work):
            return _go_on(identified(staging), work, _is_same_boot(header))
    staging = emptied(staging)
    work.ends.writer.prepare(staging.root)
    return StartedRun(
        staging, Journal(staging.journal, _header(staging, work)), DoneUnits(work.plan)
    )


def _left(staging: Staging) -> Header | None:
    """The header of an unfinished run's journal, where there is anything to resume."""
    header = read_header(staging.journal)
    if header is None or not staging.root.is_dir() or staging.root.is_symlink():
        return None
    # What was overwritten changed places with the output: such a folder is not the journal's.
    is_same_folder = os.lstat(staging.root).st_ino == header.root
    return header if is_same_folder and has_finished(staging.journal) else None


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


def _is_same_boot(header: Header) -> bool:
    return bool(header.boot) and (header.host, header.boot) == (host_name(), boot_id())


def _header(staging: Staging, work: Work) -> Header:
    root = staging.identity[1] if staging.identity else 0
    return Header(work.identity, host_name(), boot_id(), root)


def _is_packed(work: Work) -> bool:
    """Whether chunks lie in databases, of which nothing is known after a reboot."""
    specs = (move.target.spec for move in work.plan.moves)
    first = ((s.name, next(s.storage.indices(), None)) for s in specs)
    return any(i is not None and work.ends.writer.chunk_file(name, i) is None for name, i in first)


def _go_on(staging: Staging, work: Work, is_same_boot: bool) -> StartedRun:
    plan, ends = work.plan, work.ends
    _remove_others(staging, work)
    ends.writer.prepare(staging.root)
    chunks = journaled_chunks(read_finished(staging.journal, plan), plan, ends)
    if is_same_boot:
        doubted = missing(chunks, plan, ends, staging.root)
    else:
        doubted = damaged(chunks, plan, staging.root, work.progress)
    _remove_chunks(staging, work, doubted)
    return _kept(staging, work, doubted)


def _kept(staging: Staging, work: Work, doubted: set[Chunk]) -> StartedRun:
    """Counts the tasks that are kept, and writes them to a journal that takes the old one's place."""
    done, path = DoneUnits(work.plan), staging.next_journal
    with ExitStack() as on_error:
        journal = Journal(path, _header(staging, work))
        on_error.callback(journal.close)
        for task in read_finished(staging.journal, work.plan):
            if not any((task.result.move, part.index) in doubted for part in task.result.parts):
                work.ledger.take(task.result)
                done.add(task.result.move, task.unit)
                journal.append([task])
        fsync(path)
        with storage_errors("replace", staging.journal):
            path.replace(staging.journal)
        work.ledger.tell("")
        on_error.pop_all()
    return StartedRun(staging, journal, done)


def _remove_others(staging: Staging, work: Work) -> None:
    """Removes what no line speaks of: half-written chunks, and the markers of a finished checkpoint."""
    named = set(_named_files(read_finished(staging.journal, work.plan), work))
    for file in _files(staging.root):
        if file not in named and not work.ends.writer.keeps(file):
            _unlink(staging.root / file)


def _named_files(finished: Iterator[Finished], work: Work) -> Iterator[str]:
    for task in finished:
        name = work.plan.moves[task.result.move].target.spec.name
        for part in task.result.parts:
            if (file := work.ends.writer.chunk_file(name, part.index)) is not None:
                yield file


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


def _remove_chunks(staging: Staging, work: Work, chunks: set[Chunk]) -> None:
    for number, index in chunks:
        file = work.ends.writer.chunk_file(work.plan.moves[number].target.spec.name, index)
        if file is not None:
            _unlink(staging.root / file)


def _unlink(path: Path) -> None:
    with storage_errors("remove", path):
        path.unlink(missing_ok=True)
