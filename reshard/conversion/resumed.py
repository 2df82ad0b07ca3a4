"""Resumes an interrupted run where it stopped, or begins anew.

A unit is kept where every chunk that it wrote to can be trusted: it is counted, and not
filled again. Everything else that the earlier run left is removed. The journal is written anew with the units
that are kept, so that all of its lines are from this boot.

Decides which journaled chunks can be trusted after a restart.

While the same kernel runs, everything that was written before a line of the journal is in the page cache or on the
device. So a chunk is trusted whose file has its size and did not change since the last line was written, and one in a
shared file that has no hole there. A file of one chunk that changed since is read, as all are after a reboot. After a reboot,
or on another host, it may be lost, short or zeros: a closed chunk is read at each of its places, and trusted if it has
the CRC32C at its end and the one in the journal, where there is one. A chunk that is not closed, or has no checksum, is
not trusted then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path

from msgspec import to_builtins

from reshard.checksums.crc import READ_BYTES, range_crc32c
from reshard.conversion.conversion_key import ConversionKey, differences, key_left
from reshard.conversion.open_target import OpenTarget
from reshard.engine.books import DoneUnits
from reshard.engine.executor import run_tasks
from reshard.engine.journal import (
    ChunkKey,
    Journaled,
    JournaledChunk,
    missing_in_bucket,
    record_of,
)
from reshard.engine.output import TargetOutput
from reshard.engine.progress import Progress
from reshard.errors import (
    ResumeError,
    StorageError,
)
from reshard.formats.codecs.source import TRAILER_BYTES
from reshard.formats.file_map import Place, prepare_files
from reshard.formats.names import step_name
from reshard.planning.plans import Plan
from reshard.storage.local.files import storage_error, storage_errors
from reshard.storage.local.store import LocalFile
from reshard.storage.location import Location
from reshard.storage.target import FileRange, look
from reshard.storage.transaction import Earlier, Transaction


def missing_in_files(journaled: Journaled, root: Location) -> set[ChunkKey]:
    """The chunks whose files are gone or have another size or version, or a hole: the losses that need no reboot.

    ``journaled`` gives all chunks anew with each call. To be called before the files are prepared, which makes lost shared
    files anew.
    """
    if root.traits.has_versions:
        return missing_in_bucket(journaled, root)
    is_stored = look(root)
    return {
        c.key
        for c in journaled()
        if not all(_is_there(c, place, root.path, is_stored) for place in c.places)
    }


def _is_there(
    recorded: JournaledChunk, place: Place, root: str, is_stored: Callable[[FileRange], bool]
) -> bool:
    wanted = FileRange(place.file, place.offset, recorded.stored_bytes)
    if place.offset is None:
        try:
            return is_stored(wanted)
        except StorageError:  # it is written again
            return False
    if recorded.stored_bytes is not None:
        return is_stored(wanted)
    try:  # a hole is not written yet
        return os.lstat(f"{root}/{place.file}").st_size >= place.offset + recorded.full_bytes
    except OSError:
        return False


def changed_since(
    chunks: Iterable[JournaledChunk], root: str, recorded_ns: int | None
) -> Iterator[JournaledChunk]:
    """The closed chunks in files of their own that changed after they were recorded: another program wrote there.

    The time of change (ctime) counts, which no program sets. A shared file is no sign: tasks that were never recorded wrote
    to it too.
    """
    if recorded_ns is None:
        return
    for recorded in chunks:
        paths = [f"{root}/{place.file}" for place in recorded.places if place.offset is None]
        if recorded.stored_bytes is not None and any(_changed_ns(p) > recorded_ns for p in paths):
            yield recorded


def _changed_ns(path: str) -> int:
    """The time when a file changed (ns); 0 where it is gone, which ``missing_in_files`` finds."""
    try:
        return os.lstat(path).st_ctime_ns
    except OSError:
        return 0


def missing_in_database(
    chunks: Iterable[JournaledChunk], plan: Plan, output: TargetOutput
) -> set[ChunkKey]:
    """The chunks that a database should hold and does not find; to be called once it is open."""
    database = output.files.database
    return {
        (number, index)
        for number, index in (c.key for c in chunks if not c.places)
        if database is None or not database.holds(plan.tensors[number].name, index)
    }


def damaged(
    chunks: Iterable[JournaledChunk],
    plan: Plan,
    root: str,
    progress: Callable[[Progress], None] | None = None,
) -> set[ChunkKey]:
    """The chunks that are not closed, cannot be checked, or do not read back as written."""
    listed = list(chunks)
    total = sum(c.stored_bytes or 0 for c in listed)

    def check(recorded: JournaledChunk) -> tuple[JournaledChunk, bool]:
        is_known = recorded.has_trailer or recorded.crc32c is not None
        if recorded.stored_bytes is None or not recorded.places or not is_known:
            return recorded, False
        return recorded, all(_reads_back(recorded, place, root) for place in recorded.places)

    bad: set[ChunkKey] = set()
    done = 0
    ended = run_tasks(listed, check, lambda _: READ_BYTES, plan.max_memory, plan.workers)
    with closing(ended):
        for number, (recorded, is_good) in enumerate(ended, 1):
            done += recorded.stored_bytes or 0
            if not is_good:
                bad.add(recorded.key)
            if progress is not None:
                name = plan.tensors[recorded.tensor].name
                progress(Progress(done, total, number, len(listed), name, "checking"))
    return bad


def _reads_back(recorded: JournaledChunk, place: Place, root: str) -> bool:
    trailer_bytes = TRAILER_BYTES if recorded.has_trailer else 0
    try:
        found = _read(f"{root}/{place.file}", place, recorded.stored_bytes or 0, trailer_bytes)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if found is None:
        return False
    crc32c, trailer = found
    is_ended = not recorded.has_trailer or trailer == crc32c.to_bytes(TRAILER_BYTES, "little")
    return is_ended and recorded.crc32c in (None, crc32c)


def _read(
    path: str, place: Place, stored_bytes: int, trailer_bytes: int
) -> tuple[int, bytes] | None:
    """CRC32C of the chunk's bytes, and the trailer after them; None where the file has another size.

    FileNotFoundError where it is gone; StorageError where it cannot be read.
    """
    fd = _opened(path)
    try:
        with storage_errors("read", path):
            if place.offset is None and os.fstat(fd).st_size != stored_bytes:
                return None
            nbytes = stored_bytes - trailer_bytes
            file = LocalFile(fd, path)
            crc = range_crc32c(file.read, place.start, nbytes)
            return None if crc is None else (crc, file.read(place.start + nbytes, trailer_bytes))
    finally:
        os.close(fd)


def _opened(path: str) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise storage_error("read", path, error) from error


def begin_or_resume(target: OpenTarget, *, prepares: bool = True) -> None:
    """Takes over the work of an unfinished run of the same conversion, or begins anew.

    The files are prepared unless ``prepares`` is false, the books count what was kept, and records can be appended.
    Raises ResumeError, and leaves everything as it is, where that run was another conversion.
    """
    earlier = None if target.planned.target.restart else target.transaction.earlier()
    left = None if earlier is None else key_left(earlier.made_by)
    if earlier is not None and left is not None:
        _refuse_other(target.transaction, left, target.planned.key)
        if earlier.is_trusted or not _is_packed(target):
            _resume(target, earlier, prepares=prepares)
            return
    _begin(target, prepares=prepares)


def _begin(target: OpenTarget, *, prepares: bool) -> None:
    target.transaction.begin(to_builtins(target.planned.key))
    if prepares:
        with _closed_on_error(target.transaction):
            prepare_files(target.output.files, target.recording_root)
    target.done = DoneUnits(target.planned.plan)


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
    specs = (tensor.target.spec for tensor in target.planned.plan.tensors)
    first = ((s.name, next(s.storage.indices(), None)) for s in specs)
    return any(i is not None and not target.output.places(name, i) for name, i in first)


def _resume(target: OpenTarget, earlier: Earlier, *, prepares: bool) -> None:
    is_trusted = earlier.is_trusted
    plan, output, transaction = target.planned.plan, target.output, target.transaction
    transaction.keep_files()
    _remove_unnamed(target)
    doubted = missing_in_files(target.recorded_chunks, transaction.root)
    if earlier.recorded_ns is not None:  # else the versions have shown what changed
        doubtful = target.recorded_chunks()
        if is_trusted:
            doubtful = changed_since(doubtful, transaction.root.path, earlier.recorded_ns)
        if (first := next(doubtful, None)) is not None:
            listed = chain([first], doubtful)
            doubted |= damaged(listed, plan, transaction.root.path, target.progress)
    if is_trusted and _is_packed(target):
        prepare_files(output.files, target.recording_root)
        doubted |= missing_in_database(target.recorded_chunks(), plan, output)
    for number, index in doubted:  # they are written again
        for place in target.places(number, index):
            transaction.remove(place.file, place.offset)
    target.done = _keep_others(target, doubted)
    # Last: a shared file that is made anew here must not replace one that the records still describe.
    if prepares:
        with _closed_on_error(transaction):
            prepare_files(output.files, target.recording_root)


def _remove_unnamed(target: OpenTarget) -> None:
    """Removes files that no record names: half-written chunks, and the markers of a finished checkpoint."""
    named = target.files(target.recorded())
    for file in target.transaction.files():
        if file not in named and not target.output.files.keeps(file):
            target.transaction.remove(file)


def _keep_others(target: OpenTarget, doubted: set[ChunkKey]) -> DoneUnits:
    """Counts the units that are kept, and records them anew."""
    done = DoneUnits(target.planned.plan)

    def kept() -> Iterator[str]:
        for one in target.recorded():
            if not any((one.tensor, chunk.index) in doubted for chunk in one.chunks):
                target.books.take(one)
                done.add(one.tensor, one.unit)
                yield record_of([one])

    target.transaction.rewrite(to_builtins(target.planned.key), kept())
    with _closed_on_error(target.transaction):
        target.books.report_progress("")
    return done
