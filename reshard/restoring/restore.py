"""A restore from end to end: plan, read, check, report (RestoreReport), and put the values into a tree.

Chunks are read on threads within the byte budget, and each full buffer is placed. The budget counts the memory beside the
result: decoders, band buffers, and buffers that are copied to devices (``RestoredOutput.is_staged``). A group with staged buffers is one
batch, which frees them when it ends. The chunks of any other group are read in parallel, since its buffers become the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from types import MappingProxyType
from typing import Any

from msgspec import field

from reshard.answers.record import Record, counted, several, warned
from reshard.arguments import MissingChunks
from reshard.engine.limits import Limits
from reshard.engine.progress import Progress, tell_bytes
from reshard.engine.read_boxes import read_boxes
from reshard.engine.task import CastStats
from reshard.errors import (
    CheckpointWarning,
    FormatError,
    LayoutWarning,
    MissingChunksWarning,
    StorageError,
)
from reshard.formats.base import Reader
from reshard.formats.contents import PathKey, Stored
from reshard.formats.lacks import (
    check_missing,
    missing_warnings,
    numbers,
    read_as,
)
from reshard.geometry.sizes import format_bytes
from reshard.log import log, warn_caller
from reshard.restoring.mapped import restore_mapped
from reshard.restoring.options import RestoreArguments
from reshard.restoring.outputs import NumpyArray
from reshard.restoring.plan import RestorePlan, plan_restore
from reshard.restoring.request import RestoreRequest
from reshard.restoring.target_tree import filling, nested
from reshard.restoring.tensor_read import (
    ArraySink,
    Restored,
    TensorRead,
    TensorState,
    check_memory,
    read_batches,
)


class RestoreReport(Record, frozen=True):
    """The tensors and bytes that a restore read, verified and cast, in this process.

    Attributes:
        tensors: number of tensors that were restored.
        verified: number of them that were compared with their recorded digest; the others have no digest, or this process
            needed only a part of them.
        read_bytes: stored bytes that were read.
        needed_bytes: stored bytes that had to be read: the needed elements of raw chunks, and every other needed chunk
            once.
        casts: the losses of each cast or arithmetic of a map, by name of the tensor.
        seconds: wall time, without opening the checkpoint.
        warnings: one sentence for each part of the checkpoint that was left out, each rule of the layout that matches no
            tensor, and each tensor that several match; and one about missing chunks.
        numpy: names of the tensors that were restored as numpy arrays.
        missing_chunks: number of chunks that are not stored, by the name of each tensor that lacks any; the fill value was taken.
    """

    tensors: int
    verified: int
    read_bytes: int
    needed_bytes: int
    casts: Mapping[str, CastStats]
    seconds: float
    warnings: tuple[str, ...] = ()
    numpy: tuple[str, ...] = ()
    missing_chunks: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        read = f"read {format_bytes(self.read_bytes)} in {self.seconds:.1f} s"
        known = f"{self.verified:,} verified by their digest"
        headline = f"{counted(self.tensors, 'tensor')}, {read}, {known}"
        casts = [f"cast {name!r}: {lost}" for name, lost in self.casts.items()]
        return several("RestoreReport", headline, casts, warned(self.warnings))

    @property
    def amplification(self) -> float:
        """Bytes read over bytes needed; 1.0 if nothing was needed."""
        return self.read_bytes / self.needed_bytes if self.needed_bytes else 1.0


def make_report(
    plan: RestorePlan,
    restored: Sequence[Restored],
    seconds: float,
    warnings: tuple[str, ...],
    missing_chunks: Mapping[str, int],
) -> RestoreReport:
    """The report of a restore that is done."""
    computed = plan.computed
    casts = {
        r.name: d.cast for r, d in zip(plan.reads, restored, strict=True) if r.is_cast or r.name in computed
    }  # fmt: skip
    return RestoreReport(
        len(restored),
        sum(done.is_verified for done in restored),
        sum(done.read_bytes for done in restored),
        sum(done.needed_bytes for done in restored),
        MappingProxyType(casts),
        seconds,
        warnings,
        tuple(
            r.name
            for r in plan.reads
            if isinstance(r.output, NumpyArray) and not r.output.is_scalar
        ),
        missing_chunks,
    )


def restore_checkpoint(
    reader: Reader,
    request: RestoreRequest,
    options: RestoreArguments,
    check_unchanged: Callable[[], None],
) -> Any:
    """The tree of restored values; see ``reshard.restore``.

    Args:
        check_unchanged: raises StorageError if the checkpoint is not the one that ``reader`` opened. It is
            called before and after reading, and after an error, which may come from another checkpoint.
    """
    check_unchanged()
    started = time.perf_counter()
    plan = plan_restore(reader, request)
    missing = _missing(reader, plan, options.missing_chunks)
    lost = missing_warnings(reader.uri, missing, options.missing_chunks)
    layout = _layout_warnings(plan, request)
    if options.missing_chunks is not None:
        reader = read_as(reader, options.missing_chunks)
    warnings = (*reader.warnings, *layout, *lost)
    if options.report is None and warnings:
        warn_caller(reader.warnings, CheckpointWarning)
        warn_caller(layout, LayoutWarning)
        warn_caller(lost, MissingChunksWarning)
    with nullcontext() if options.into is None else filling():
        restored = _read(plan, reader, request, options, check_unchanged)
    seconds = time.perf_counter() - started
    log("restored %d tensors of %r in %.1f s", len(restored), reader.uri, seconds)
    if options.report is not None:
        options.report(make_report(plan, restored, seconds, warnings, numbers(missing)))
    if options.into is not None:
        return options.into
    return _tree(reader, plan, request, restored)


def _read(
    plan: RestorePlan,
    reader: Reader,
    request: RestoreRequest,
    options: RestoreArguments,
    check_unchanged: Callable[[], None],
) -> list[Restored]:
    try:
        own = request.limits, options.verify, options.progress
        if plan.mapping is None:
            restored = restore_stored(plan.reads, reader, *own)
        else:
            restored = restore_mapped(plan.reads, plan.mapping, reader, *own)
    except (FormatError, StorageError):
        check_unchanged()
        raise
    check_unchanged()
    return restored


def _layout_warnings(plan: RestorePlan, request: RestoreRequest) -> tuple[str, ...]:
    shardings = request.shardings
    if shardings is None:
        return ()
    return shardings.warnings([r.name for r in plan.reads], [r.stored.spec for r in plan.reads])


def _missing(reader: Reader, plan: RestorePlan, asked: MissingChunks | None) -> dict[str, Stored]:
    """The tensors that lack stored chunks; CorruptError where ``asked`` refuses them.

    A tensor that records that it stores every chunk is left to reading, which refuses a missing one without a listing.
    """
    if plan.mapping is None:
        stored = [read.stored for read in plan.reads]
    else:
        taken = {name for made in plan.mapping.tensors for name in made.sources}
        stored = [reader.tensors[name] for name in reader.tensors if name in taken]
    names = [s.spec.name for s in stored if s.may_be_missing or asked is not None]
    return check_missing(reader, names, asked)


def _tree(
    reader: Reader, plan: RestorePlan, request: RestoreRequest, restored: Sequence[Restored]
) -> Any:
    values = dict(plan.values)
    values |= {read.name: done.value for read, done in zip(plan.reads, restored, strict=True)}
    if request.like is not None:
        return request.like.filled(values)
    below_items = bool(reader.container.naming_items)
    leaves = [source.leaf for source in plan.leaves]
    paths = [((PathKey(leaf.item),) if below_items else ()) + leaf.path for leaf in leaves]
    return nested((path, values[leaf.name]) for path, leaf in zip(paths, leaves, strict=True))


def restore_stored(
    reads: Sequence[TensorRead],
    reader: Reader,
    limits: Limits,
    verify: bool,
    progress: Callable[[Progress], None] | None = None,
) -> list[Restored]:
    """Reads every tensor; returns one result each, in order.

    Raises MemoryBudgetError before anything is read; the first error of any chunk, after running batches
    have ended; CorruptError if the digest of a tensor differs from the recorded one.
    """
    check_memory(reads, limits.max_memory)
    states = [TensorState.of(read, limits, verify) for read in reads]
    total = sum(r.size * read.stored.spec.itemsize for read in reads for r in read.output.regions)
    tell = tell_bytes(total, "restoring", progress)
    batches = read_batches(states, reader, limits.max_memory)
    with closing(read_boxes(batches, ArraySink, (), limits, checks_all=False)) as ended:
        for results in ended:
            for done in results:
                done.unit.of.opened.state.add(done)
            last = results[-1].unit.of.opened.state.read.name
            tell(last, sum([done.unit.of.nbytes for done in results]))
    return [state.restored() for state in states]
