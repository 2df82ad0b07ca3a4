"""Compares two checkpoints of any meshes and chunks element by element.

A tensor is split into blocks at the chunk edges that both sides share. Each block reads its chunks once if the budget
allows (see ``engine.decode.box_plan``), fills bands of both sides, and compares them (see ``elements``)::

    chunks of A   |   |   |   |       chunks of B   |     |     |
    blocks        |           |
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import closing

from msgspec.structs import replace

from reshard.checksums.tensor_digest import row_major
from reshard.engine.limits import Limits
from reshard.engine.metadata_budget import BYTES_PER_DIFFERENCE, check_leaves_to_read, left_to_read
from reshard.engine.progress import Progress, tell_bytes
from reshard.engine.read_boxes import batched, read_boxes
from reshard.formats.base import Reader
from reshard.formats.contents import StoredTensor
from reshard.formats.lacks import filled_chunks, missing_warnings
from reshard.formats.registry import CheckpointPath, open_reader
from reshard.formats.slices.kept_metadata import metadata_warnings
from reshard.geometry.dtypes import PACKED
from reshard.layout.changes import Changes
from reshard.planning.rules import rewrites
from reshard.verification.compare import AllLeaves, compare_others
from reshard.verification.elements import Comparing, Differences
from reshard.verification.pair_blocks import PairSink, TensorPair, check_pairs, pair_units
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
    pairs = [(name, a.tensors[name], b.tensors[name]) for name in tensors if _is_pair(name, a, b)]
    matched = [TensorPair.of(number, *pair) for number, (_, *pair) in enumerate(pairs)]
    check_pairs(matched, left, limits.max_memory - left)
    found = _compared(matched, (a, b), Limits(left, limits.workers), progress)
    compared = {name: differences for (name, *_), differences in zip(pairs, found, strict=True)}
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


def _is_pair(name: str, a: Reader, b: Reader) -> bool:
    """True if both have the tensor, and its elements can be compared one by one."""
    one, other = a.tensors.get(name), b.tensors.get(name)
    return one is not None and other is not None and not _unlike(one, other)


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
    pairs: Sequence[TensorPair],
    readers: tuple[Reader, Reader],
    limits: Limits,
    progress: OnProgress | None,
) -> list[Differences]:
    """The differences of each pair of tensors; errors as of ``read_boxes``."""
    found = [Differences()] * len(pairs)
    tell = tell_bytes(sum(pair.nbytes for pair in pairs), "comparing", progress)
    batches = batched(pair_units(pairs, limits.max_memory, limits.workers))
    with closing(read_boxes(batches, PairSink, readers, limits)) as ended:
        for results in ended:
            for done in results:
                number = done.unit.of.number
                found[number] = found[number] + done.result
            tell(results[-1].unit.of.a.spec.name, sum(done.unit.nbytes for done in results))
    return found


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
