"""OpenTarget: a target while a run writes it. Finds a finished one, and locks one that is to be written.

Ends a run that fails: removes what it wrote, or keeps it for the run that resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from msgspec import field

from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.conversion_key import ConversionKey, key_left
from reshard.conversion.make_plan import TargetPlan
from reshard.conversion.prove import check_complete, check_read_back, check_unseen_memory
from reshard.conversion.run import Run
from reshard.engine.books import Books, TargetRun
from reshard.engine.error_context import about_target
from reshard.engine.journal import JournaledChunk, journaled_chunks, read_results, record_of
from reshard.engine.limits import Limits
from reshard.engine.output import TargetOutput, Uploads
from reshard.engine.progress import Tell
from reshard.engine.task import Result
from reshard.errors import (
    CorruptError,
    FormatError,
    ReshardError,
    ResumeError,
    SourceChangedError,
    StorageError,
    SyncError,
    VerificationError,
)
from reshard.formats.base import Reader
from reshard.formats.file_map import Place
from reshard.formats.known_formats import files_of
from reshard.formats.registry import open_reader
from reshard.geometry.grid import Index
from reshard.geometry.sizes import format_bytes
from reshard.storage.location import Location, locate
from reshard.storage.target import recording_versions
from reshard.storage.targets import (
    device_of,
    has_leftovers,
    is_link,
    lock_target,
    make_name_durable,
    root_text,
)
from reshard.storage.transaction import Transaction, may_be_resumed


class OpenTarget(TargetRun, kw_only=True):
    """A target while a run writes it: its plan, its transaction, and the work that is done.

    Attributes:
        done: units that are filled; None until this run has begun, or has taken over from an earlier one.
        progress: called with the progress of this target.
        put: the version of each metadata file that this run has put into a bucket, by its path.
        read_back: the sums of what each part has read back, if parts have written it and were asked to.
        is_published: true if the target has appeared, so that only temporary files are left to remove.
    """

    planned: TargetPlan
    transaction: Transaction
    progress: Tell | None = None
    put: dict[str, str] = field(default_factory=dict)
    read_back: Sequence[Mapping[str, int]] = ()
    is_published: bool = False

    @property
    def recording_root(self) -> Location:
        """The root for the files that the format writes; in a bucket it records their versions."""
        return recording_versions(self.transaction.root, self.put)

    @property
    def is_begun(self) -> bool:
        """True if this run has begun the target, or has taken it over from an earlier run."""
        return self.done is not None

    def places(self, tensor: int, index: Index) -> tuple[Place, ...]:
        """The places of a chunk of a tensor, by its number."""
        return self.output.places(self.planned.plan.tensors[tensor].name, index)

    def files(self, results: Iterable[Result]) -> dict[str, None]:
        """The files of some results, each once."""
        return {
            place.file: None
            for result in results
            for chunk in result.chunks
            for place in self.places(result.tensor, chunk.index)
        }

    def recorded(self) -> Iterator[Result]:
        """The units that are recorded, read anew with each call."""
        return read_results(self.transaction.records(), self.planned.plan)

    def recorded_chunks(self) -> Iterator[JournaledChunk]:
        """The chunks of these units."""
        return journaled_chunks(self.recorded(), self.planned.plan, self.output)


def check_space(targets: Sequence[TargetPlan]) -> None:
    """Raises StorageError where there is no room for targets that no run has begun."""
    _check([(each, each.plan.written_bytes) for each in targets if not each.has_leftovers])


def check_space_left(targets: Sequence[OpenTarget]) -> None:
    """Raises StorageError where there is no room for the bytes that earlier runs have not written."""
    _check(
        [
            (target.planned, target.planned.plan.written_bytes - target.books.written_bytes)
            for target in targets
        ]
    )


def _check(needs: Sequence[tuple[TargetPlan, int]]) -> None:
    """Checks raw output, whose size is known; compressed output may be smaller, so that it is not checked."""
    by_device: dict[int, list[tuple[TargetPlan, int]]] = {}
    for planned, nbytes in needs:
        is_raw = all(t.encoding.compressor == "none" for t in planned.checkpoint.tensors.values())
        device = device_of(planned.place) if is_raw else None
        if device is not None:
            by_device.setdefault(device, []).append((planned, nbytes))
    for on_device in by_device.values():
        free, need = on_device[0][0].place.parent.free_bytes(), sum(n for _, n in on_device)
        if free is not None and need > free:
            names = " and ".join(repr(str(planned.place)) for planned, _ in on_device)
            needs_, whose = ("needs", "its") if len(on_device) == 1 else ("need", "their")
            raise StorageError(
                f"{names} {needs_} {format_bytes(need)}, but {whose} file system has only "
                f"{format_bytes(free)} free; free space, choose another target, or narrow what is "
                "converted (select, cast)"
            )


def open_output(planned: TargetPlan, limits: Limits, root: str | None = None) -> TargetOutput:
    """The output of a target before anything is written, below its own root; or below ``root``, that of a part, which makes all its files.

    Raises FormatError for content that the format cannot hold, MemoryBudgetError for tensors that could not be proved at the end.
    """
    checkpoint, plan = planned.checkpoint, planned.plan
    with about_target(planned.name):
        if planned.target.check == "readback":
            check_read_back(plan, planned.reader, checkpoint, limits)
        check_unseen_memory(plan, planned.reader, limits, planned.equal)
        files = checkpoint.form.plan(checkpoint)
    encodings = {name: tensor.encoding for name, tensor in checkpoint.tensors.items()}
    sides = [tensor.target for tensor in plan.tensors]
    is_sent = any(side.in_order is not None and not side.ends_with_chunk for side in sides)
    sent_to = planned.place if root is None else locate(root)
    uploads = Uploads(sent_to, files.shared_file) if is_sent else None
    own = root_text(planned.place, planned.file) if root is None else root
    makes_files = root is not None and files.database is None
    return TargetOutput(files, encodings, own, planned.name, uploads, makes_files=makes_files)


Lock = Callable[[TargetPlan, TargetOutput, ExitStack], OpenTarget | None]
"""Locks a target until the stack ends; None where nothing is left to do."""


@contextmanager
def locked_targets(
    run: Run[Any], planned: Sequence[TargetPlan], outputs: Sequence[TargetOutput], lock: Lock
) -> Iterator[Sequence[OpenTarget]]:
    """Opens and locks each target for the block. If the block fails, keeps the work that a run can resume."""
    targets: list[OpenTarget] = []
    with ExitStack() as locks, kept_where_useful(targets, len(run.targets)):
        for each, output in zip(planned, outputs, strict=True):
            with about_target(each.name):
                target = lock(each, output, locks)
            if target is not None:
                books = target.books
                run.progress.expect(each.number, books.total_bytes, books.total_tasks)
                targets.append(target)
        yield targets


def open_target(
    run: Run[Any], planned: TargetPlan, output: TargetOutput, transaction: Transaction
) -> OpenTarget:
    """A target whose transaction this run holds."""
    if output.uploads is not None:
        output.uploads.check = transaction.check
    progress = run.progress.of(planned.number)
    books = Books(planned.plan, output, progress)

    def record(results: Sequence[Result]) -> None:
        transaction.append(record_of(results))

    return OpenTarget(
        output, books, record=record, planned=planned, transaction=transaction, progress=progress
    )


def lock_whole(planned: TargetPlan, locks: ExitStack) -> Transaction:
    """Locks all of a target for this run alone."""
    target = planned.target
    held = lock_target(planned.place, planned.file, unsafe=target.unsafe_commit, state=target.state)
    return locks.enter_context(held)


@contextmanager
def begun_targets(
    targets: Sequence[OpenTarget], begin: Callable[[OpenTarget], None]
) -> Iterator[None]:
    """Begins each target, or resumes an earlier run to it; records can be appended in the block."""
    with ExitStack() as open_records:
        for target in targets:
            with about_target(target.planned.name):
                begin(target)
            open_records.enter_context(closing(target.transaction))
        yield


UNTRUSTED_AFTER = (VerificationError, FormatError, SyncError, SourceChangedError)
"""After these errors nothing that was written can be resumed."""

ABOUT_THE_SOURCE = (SourceChangedError, FormatError)
"""These errors are about all targets, whichever of them was at work."""


@contextmanager
def kept_where_useful(targets: Sequence[OpenTarget], count: int = 1) -> Iterator[None]:
    """Removes the held staging folders if the block fails, except those that a run can resume.

    ``targets``: those that are held then, of ``count`` in the call. The error says what is kept, where,
    and that the same command resumes it. A ResumeError leaves the folder that it is about as it is.
    """
    try:
        yield
    except BaseException as error:
        kept = [target for target in targets if _is_kept(target, error, count)]
        if kept and isinstance(error, ReshardError) and len(error.args) == 1:
            error.args = (f"{error}; {_kept(kept, count)}",)
        elif kept:
            error.add_note(_kept(kept, count))
        raise


def removed_once_published(target: OpenTarget) -> None:
    """Removes the temporary files of a published target."""
    target.is_published = True
    target.transaction.abort()


def _is_kept(target: OpenTarget, error: BaseException, count: int) -> bool:
    """True if the error leaves something of a target to resume; removes the rest."""
    transaction, is_begun = target.transaction, target.is_begun or count == 1
    named = None if isinstance(error, ABOUT_THE_SOURCE) else getattr(error, "target", None)
    is_about_it = named in (None, transaction.target)
    if isinstance(error, ResumeError) and is_about_it:
        return False
    if target.is_published or transaction.is_committed():
        error.add_note(f"{transaction.target!r} is published and whole")
        return False
    is_lost = isinstance(error, UNTRUSTED_AFTER) and is_about_it and is_begun
    if is_lost or not may_be_resumed(transaction):
        transaction.abort()
        return False
    return is_begun


def _kept(kept: Sequence[OpenTarget], count: int) -> str:
    if count == 1:
        (target,) = kept
        return (
            f"no target was published; what is done ({_share(target)}) was kept in {target.transaction.place!r}: "
            "run the same again to resume it, or start over (restart)"
        )
    parts = (
        f"of {target.transaction.target!r} ({_share(target)}) in {target.transaction.place!r}"
        for target in kept
    )
    return f"what is done was kept: {', '.join(parts)}; run the same again to resume it, or start over (restart)"


def _share(target: OpenTarget) -> str:
    moved, total = target.books.moved_bytes, target.books.total_bytes
    share = 100 * moved // total if total else 100
    return f"{share} % of {format_bytes(total)}"


def open_result(target: str, key: ConversionKey) -> Reader | None:
    """The target, if it can be opened and its record names this conversion of this source; else None.

    Raises CorruptError where a chunk of it is missing or cut short: it was damaged since.
    """
    try:
        place = locate(target)
        if is_link(place) or not (place.exists() or files_of(place)):
            return None
        reader = open_reader(target)
        made_by = reader.conversion
    except (ReshardError, OSError):
        return None
    if made_by != key.output:
        return None
    try:
        check_complete(reader)
    except CorruptError as error:
        raise CorruptError(
            f"the target {target!r} is the finished result of this conversion, but was damaged since: {error}; "
            "make it again (overwrite), or choose another target"
        ) from error
    return reader


def clean_published(target: CheckedTarget, key: ConversionKey) -> None:
    """Removes the files of a run of this conversion that was killed after it published.

    It may have been killed before the target's name was durable, so that is done here.
    """
    place = target.place
    if not has_leftovers(place, state=target.state):
        return
    with ExitStack() as stack:
        try:
            held = lock_target(place, unsafe=target.unsafe_commit, state=target.state)
            transaction = stack.enter_context(held)
        except StorageError:
            return
        make_name_durable(place)
        abort_own(transaction, key)


def abort_own(transaction: Transaction, key: ConversionKey) -> None:
    """Removes the files of an earlier run, unless another conversion can resume it."""
    try:
        left = key_left(transaction.left_by())
    except ResumeError:
        return
    if left is None or left.output == key.output:
        transaction.abort()
