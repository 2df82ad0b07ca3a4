"""Resumes an interrupted run where it stopped, or begins anew.

A unit is kept where every chunk that it wrote to can be trusted (``check_chunks``): it is counted, and not
filled again. Everything else that the earlier run left is removed. The journal is written anew with the units
that are kept, so that all of its lines are from this boot.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from msgspec import to_builtins
from msgspec.structs import replace

from reshard.conversion.resume.check_chunks import (
    changed_since,
    damaged,
    missing_in_database,
    missing_in_files,
)
from reshard.conversion.resume.conversion_key import ConversionKey, differences
from reshard.conversion.resume.journal import ChunkKey, key_left, record_of
from reshard.conversion.target_job import OpenTarget
from reshard.engine.books import DoneUnits
from reshard.engine.task import Result
from reshard.errors import ResumeError
from reshard.formats.carry_out import prepare_files
from reshard.formats.step_names import step_name
from reshard.storage.transaction import Earlier, Transaction


def begin_or_resume(target: OpenTarget, *, prepares: bool = True) -> None:
    """Takes over the work of an unfinished run of the same conversion, or begins anew.

    The files are prepared unless ``prepares`` is false, the books count what was kept, and records can be appended.
    Raises ResumeError, and leaves everything as it is, where that run was another conversion.
    """
    earlier = None if target.job.restart else target.transaction.earlier()
    left = None if earlier is None else key_left(earlier.made_by)
    if earlier is not None and left is not None:
        _refuse_other(target.transaction, left, target.job.key)
        if earlier.is_trusted or not _is_packed(target):
            _resume(target, earlier, prepares=prepares)
            return
    _begin(target, prepares=prepares)


def _begin(target: OpenTarget, *, prepares: bool) -> None:
    target.transaction.begin(to_builtins(target.job.key))
    if prepares:
        with _closed_on_error(target.transaction):
            prepare_files(target.output.files, target.recording_root)
    target.done = DoneUnits(target.job.plan)


@contextmanager
def _closed_on_error(transaction: Transaction) -> Iterator[None]:
    try:
        yield
    except BaseException:
        transaction.close()
        raise


def _refuse_other(transaction: Transaction, before: ConversionKey, now: ConversionKey) -> None:
    if steps := _steps(before, now):
        run, was, now_is = steps
        raise ResumeError(
            f"an unfinished run to {transaction.target!r} was of step {was} of {run!r}, and this one is of step "
            f"{now_is}; what it did was kept in {transaction.place!r}: resume it by step={was}, or start over "
            "(restart)"
        )
    if different := differences(before, now):
        raise ResumeError(
            f"an unfinished run to {transaction.target!r} was another conversion: {'; '.join(different)}; "
            f"what it did was kept in {transaction.place!r}: give the same again to resume it, or start "
            "over (restart)"
        )


def _steps(before: ConversionKey, now: ConversionKey) -> tuple[str, int, int] | None:
    """The training run and the two steps, where the sources of two conversions differ in the step alone; else None."""
    was, is_now = Path(before.source).parts, Path(now.source).parts
    apart = [n for n, (a, b) in enumerate(zip(was, is_now, strict=False)) if a != b]
    if len(was) != len(is_now) or len(apart) != 1:
        return None
    (at,) = apart
    old, new = step_name(was[at]), step_name(is_now[at])
    if old is None or new is None or old.prefix != new.prefix:
        return None
    return str(Path(*was[:at])), old.step, new.step


def _is_packed(target: OpenTarget) -> bool:
    """True if chunks are in databases, whose state is unknown after a reboot."""
    specs = (tensor.target.spec for tensor in target.job.plan.tensors)
    first = ((s.name, next(s.storage.indices(), None)) for s in specs)
    return any(i is not None and not target.output.places(name, i) for name, i in first)


def _resume(target: OpenTarget, earlier: Earlier, *, prepares: bool) -> None:
    is_trusted = earlier.is_trusted
    plan, output, transaction = target.job.plan, target.output, target.transaction
    transaction.keep_files()
    _remove_others(target)
    doubted = missing_in_files(target.recorded_chunks, transaction.root)
    if earlier.recorded_ns is not None:  # else the versions have shown what changed
        # The writes of another host were never in this kernel's page cache.
        doubtful = target.recorded_chunks(of_others=is_trusted)
        if is_trusted:
            here = target.recorded_chunks()
            changed = changed_since(here, transaction.root.path, earlier.recorded_ns)
            doubtful = chain(doubtful, changed)
        if (first := next(doubtful, None)) is not None:
            listed = chain([first], doubtful)
            doubted |= damaged(listed, plan, transaction.root.path, target.progress)
    if is_trusted and _is_packed(target):
        prepare_files(output.files, target.recording_root)
        doubted |= missing_in_database(target.recorded_chunks(), plan, output)
    if target.job.by_hosts:
        doubted |= set(_in_files_of(target, doubted))
    _remove_chunks(target, doubted)
    target.done = _keep_others(target, doubted)
    # Last: a shared file that is made anew here must not replace one that the records still describe.
    if prepares:
        with _closed_on_error(transaction):
            prepare_files(output.files, target.recording_root)


def _in_files_of(target: OpenTarget, chunks: set[ChunkKey]) -> Iterator[ChunkKey]:
    """All chunks that share a file with one of ``chunks``: tasks elsewhere make such a file anew, as a whole."""
    plan, output = target.job.plan, target.output

    def shared(chunk: ChunkKey) -> list[str]:
        number, index = chunk
        places = output.places(plan.tensors[number].name, index)
        return [place.file for place in places if place.offset is not None]

    files = {file for chunk in chunks for file in shared(chunk)}
    if files:
        yield from (c.key for c in target.recorded_chunks() if not files.isdisjoint(shared(c.key)))


def _keep_others(target: OpenTarget, doubted: set[ChunkKey]) -> DoneUnits:
    """Counts the units that are kept, and records them anew."""
    done = DoneUnits(target.job.plan)

    def kept() -> Iterator[str]:
        for one in target.recorded():
            if not any((one.tensor, chunk.index) in doubted for chunk in one.chunks):
                target.books.take(one)
                done.add(one.tensor, one.unit)
                yield record_of([replace(one, host="")])

    target.transaction.rewrite(to_builtins(target.job.key), kept())
    with _closed_on_error(target.transaction):
        target.books.report_progress("")
    return done


def _remove_others(target: OpenTarget) -> None:
    """Removes files that no record names: half-written chunks, and the markers of a finished checkpoint."""
    named = set(_named_files(target.recorded(), target))
    for file in target.transaction.files():
        if file not in named and not target.output.files.keeps(file):
            target.transaction.remove(file)


def _named_files(results: Iterator[Result], target: OpenTarget) -> Iterator[str]:
    for one in results:
        name = target.job.plan.tensors[one.tensor].name
        for chunk in one.chunks:
            yield from (place.file for place in target.output.places(name, chunk.index))


def _remove_chunks(target: OpenTarget, chunks: set[ChunkKey]) -> None:
    """Removes chunks that are written again."""
    for number, index in chunks:
        name = target.job.plan.tensors[number].name
        for place in target.output.places(name, index):
            target.transaction.remove(place.file, place.offset)
