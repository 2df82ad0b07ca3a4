"""Compares two checkpoints of any meshes and chunks element by element.

A tensor is split into blocks at the chunk edges that both sides share. Each block reads its chunks once if the budget
allows (see ``pair_plan``), fills bands of both sides, and compares them (see ``elements``)::

    chunks of A   |   |   |   |       chunks of B   |     |     |
    blocks        |           |
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial

from msgspec.structs import replace

from reshard.checksums.tensor_digest import row_major
from reshard.engine.buffers import ArenaPool
from reshard.engine.executor import run_tasks
from reshard.engine.limits import Limits
from reshard.engine.metadata_budget import BYTES_PER_DIFFERENCE, check_leaves_to_read, left_to_read
from reshard.engine.progress import Progress
from reshard.engine.read_digests import BATCH_BYTES, BATCH_CHUNKS
from reshard.formats.base import Reader
from reshard.formats.contents import StoredTensor
from reshard.formats.lacks import filled_chunks, missing_warnings
from reshard.formats.registry import CheckpointPath, open_reader
from reshard.formats.slices.kept_metadata import metadata_warnings
from reshard.geometry.dtypes import PACKED
from reshard.layout.changes import Changes
from reshard.planning.planner import open_files_per_task
from reshard.planning.rules import rewrites
from reshard.verification.compare import AllLeaves, compare_others
from reshard.verification.elements import Comparing, Differences
from reshard.verification.pair_blocks import (
    Pair,
    PairBlock,
    TensorPair,
    check_pairs,
    compare_blocks,
    plan_pair,
)
from reshard.verification.reports import DiffReport, TensorDiff, no_place_warnings

OnProgress = Callable[[Progress], None]


def diff_checkpoints(
    a: CheckpointPath,
    b: CheckpointPath,
    changes: Changes,
    limits: Limits,
    progress: OnProgress | None = None,
) -> DiffReport:
    """Compares two checkpoints; see ``reshard.diff``."""
    check_leaves_to_read(limits.max_memory, a, b, bytes_per_tensor=BYTES_PER_DIFFERENCE)
    readers = open_reader(a), open_reader(b)
    found = diff_readers(*readers, changes, limits, progress)
    told = (missing_warnings(side.uri, filled_chunks(side)) for side in readers)
    texts = metadata_warnings(*(side.metadata for side in readers))
    missing = itertools.chain.from_iterable(told)
    return replace(found, warnings=(*found.warnings, *texts, *missing))


def diff_readers(
    a: Reader, b: Reader, changes: Changes, limits: Limits, progress: OnProgress | None = None
) -> DiffReport:
    """Compares the tensors and leaves of two open checkpoints that ``changes`` select."""
    started = time.monotonic()
    left = left_to_read(limits.max_memory, a, b, bytes_per_tensor=BYTES_PER_DIFFERENCE)
    leaves = AllLeaves.of(a), AllLeaves.of(b)
    names = _selected(*leaves, changes)
    tensors = [name for name in names if not any(x.is_other(name) for x in leaves)]
    in_a = {name: name for name in names if name in leaves[0].leaves}
    matched = {name: m for name in tensors if (m := _matched(name, a, b)) is not None}
    check_pairs([(m.a, m.b) for m in matched.values()], left, limits.max_memory - left)
    found = _compared(list(matched.values()), (a, b), left, limits.workers, progress)
    compared = dict(zip(matched, found, strict=True))
    others = tuple(compare_others(*leaves, in_a, names))
    return DiffReport(
        a.uri,
        b.uri,
        {n: _tensor_diff(n, a.tensors.get(n), b.tensors.get(n), compared.get(n)) for n in tensors},
        {leaf.name: leaf for leaf in others},
        time.monotonic() - started,
        (*a.warnings, *b.warnings, *no_place_warnings(a.uri, b.uri, others)),
    )


def _selected(a: AllLeaves, b: AllLeaves, changes: Changes) -> list[str]:
    names = [*a.leaves, *(name for name in b.leaves if name not in a.leaves)]
    specs = {name: t.spec for side in (b, a) for name, t in side.tensors.items()}
    return [rewrite.source for rewrite in rewrites(changes, names, specs)]


def _matched(name: str, a: Reader, b: Reader) -> TensorPair | None:
    """The pair of tensors; None if their elements cannot be compared one by one."""
    one, other = a.tensors.get(name), b.tensors.get(name)
    if one is None or other is None or _unlike(one, other):
        return None
    return TensorPair.of(one, other)


def _unlike(a: StoredTensor, b: StoredTensor) -> str:
    """The reason why elements cannot be compared one by one; "" if they can."""
    if a.spec.shape != b.spec.shape:
        return f"shape {list(a.spec.shape)} in A, {list(b.spec.shape)} in B"
    if a.is_key != b.is_key:
        return f"a PRNG key in {'A' if a.is_key else 'B'} only"
    is_bits = a.is_key or not PACKED.keys().isdisjoint((a.spec.dtype, b.spec.dtype))
    return _dtypes(a, b) if is_bits else ""


def _dtypes(a: StoredTensor, b: StoredTensor) -> str:
    one, other = a.spec.dtype, b.spec.dtype
    return "" if one == other else f"dtype {one} in A, {other} in B"


def _compared(
    matched: Sequence[TensorPair],
    readers: tuple[Reader, Reader],
    max_memory: int,
    workers: int,
    progress: OnProgress | None,
) -> list[Differences]:
    """The differences of each pair of tensors.

    Raises the first error of any task, after running tasks have ended: CorruptError, naming tensor and chunk, if stored
    bytes are wrong; StorageError if they cannot be read.
    """
    found = [Differences()] * len(matched)
    total = sum(m.nbytes for m in matched)
    pool = ArenaPool(max_memory, workers)
    work = partial(compare_blocks, matched=matched, readers=readers, pool=pool)
    done_bytes = 0
    ended = run_tasks(_tasks(matched, max_memory, workers), work, _memory, max_memory, workers)
    with closing(ended):
        for number, results in enumerate(ended, 1):
            for block, differences in results:
                found[block.number] = found[block.number] + differences
                done_bytes += block.pair.nbytes
            name = matched[results[-1][0].number].a.spec.name
            if progress is not None:
                progress(Progress(done_bytes, total, number, number, name, "comparing"))
    return found


def _memory(task: Sequence[PairBlock]) -> int:
    """The memory of its largest block: a task runs one block after another."""
    return max(block.plan.memory_bytes for block in task)


def _tasks(
    matched: Sequence[TensorPair], max_memory: int, workers: int
) -> Iterator[tuple[PairBlock, ...]]:
    """Every block; small ones share a task."""
    batch: list[PairBlock] = []
    nbytes = 0
    for block in _blocks(matched, max_memory, workers):
        batch.append(block)
        nbytes += block.pair.nbytes
        if nbytes >= BATCH_BYTES or len(batch) >= BATCH_CHUNKS:
            yield tuple(batch)
            batch, nbytes = [], 0
    if batch:
        yield tuple(batch)


def _blocks(matched: Sequence[TensorPair], max_memory: int, workers: int) -> Iterator[PairBlock]:
    """Every block; large tensors come first, so that no worker is left with one at the end."""

    def size(number: int) -> int:
        nbytes = matched[number].nbytes
        return nbytes if nbytes > BATCH_BYTES else 0

    share, most_open = max_memory // workers, open_files_per_task(workers) // 2
    for number in sorted(range(len(matched)), key=size, reverse=True):
        pair = matched[number]
        for box in pair.blocks.boxes():
            block = Pair.of(pair.a, pair.b, box)
            yield PairBlock(number, block, plan_pair(block, max_memory, share, most_open))


def _tensor_diff(
    name: str, a: StoredTensor | None, b: StoredTensor | None, found: Differences | None
) -> TensorDiff:
    if a is None or b is None:
        return _alone(name, a, b)
    specs = (a.spec.shape, b.spec.shape, a.spec.dtype, b.spec.dtype)
    if found is None:
        return TensorDiff(name, "different", *specs, _unlike(a, b))
    comparing = Comparing.of(a.spec.dtype, b.spec.dtype, is_key=a.is_key)
    detail = _dtypes(a, b)
    return TensorDiff(
        name,
        "different" if found.elements or detail else "equal",
        *specs,
        detail,
        comparing.compared_as,
        found.elements,
        found.nonfinite,
        *found.nans,
        *found.infinities,
        found.largest,
        None if found.at is None else _index(found.at, a.spec.shape),
        None if a.is_key else found.relative,
    )


def _alone(name: str, a: StoredTensor | None, b: StoredTensor | None) -> TensorDiff:
    if a is not None:
        return TensorDiff(name, "only in A", shape_a=a.spec.shape, dtype_a=a.spec.dtype)
    if b is not None:
        return TensorDiff(name, "only in B", shape_b=b.spec.shape, dtype_b=b.spec.dtype)
    raise ValueError(f"{name!r} is in neither checkpoint")


def _index(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of the element with that row-major number."""
    strides = row_major(shape, 1)
    return tuple(number // step % size for step, size in zip(strides, shape, strict=True))
