"""The output of ``diff``: the tensors that changed most come first, then tensors that cannot be compared, then the
verdict."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from functools import partial

from rich.console import RenderableType
from rich.text import Text

from reshard import DiffReport, TensorDiff
from reshard.cli.tables import MOST_ROWS, Cell, first_rows, warning
from reshard.cli.text import (
    TensorGroup,
    count_text,
    dtype_text,
    duration_text,
    grouped,
    groups_of,
    safe,
    shape_text,
)
from reshard.cli.views.verification import compared_leaves, leaves_view, others_text


def diff_view(found: DiffReport, show_all: bool, most: int = MOST_ROWS) -> Iterator[RenderableType]:
    """Layers that are alike share a row, with the sum of their elements and the largest of the other numbers."""
    tensors = [t for t in found.tensors.values() if t.is_difference]
    compared = [t for t in tensors if t.elements is not None]
    yield from _changed(compared, show_all, most)
    yield from _unlike([t for t in tensors if t.elements is None], show_all, most)
    yield from leaves_view(list(found.leaves.values()), show_all, most)
    yield from map(warning, found.warnings)
    yield _verdict(found, len(tensors))


def _changed(tensors: Sequence[TensorDiff], show_all: bool, most: int) -> Iterator[RenderableType]:
    groups = groups_of(tensors, _name, _alike, show_all)
    groups.sort(key=_weight, reverse=True)
    where = ">at" if show_all else ">n"
    titles = ("tensor", where, ">differ", ">share", ">largest", ">relative")
    row = partial(_row, show_all=show_all)
    yield from first_rows(titles, groups, row, "rows", show_all=show_all, most=most)
    yield from _notes(tensors)


def _name(tensor: TensorDiff) -> str:
    return tensor.name


def _alike(tensor: TensorDiff) -> Hashable:
    return tensor.shape_a, tensor.dtype_a, tensor.dtype_b


def _weight(group: TensorGroup[TensorDiff]) -> tuple[float, float, int]:
    """Sorts the largest relative change first, and changes of keys or NaN alone last."""
    return _largest(group), float(_most(group) or 0), sum(t.elements or 0 for t in group.members)


def _largest(group: TensorGroup[TensorDiff]) -> float:
    return max(t.relative or 0.0 for t in group.members)


def _most(group: TensorGroup[TensorDiff]) -> int | float | None:
    return max((t.largest for t in group.members if t.largest is not None), default=None)


def _row(group: TensorGroup[TensorDiff], show_all: bool) -> tuple[Cell, ...]:
    elements = sum(t.elements or 0 for t in group.members)
    first = group.first
    size = math.prod(first.shape_a or ()) * group.count
    most, index = _most(group), first.index
    where = f"{group.count:,}"
    if show_all:
        where = "–" if index is None else f"[{','.join(map(str, index))}]"
    return (
        group.name,
        where,
        f"{elements:,}",
        _share(elements, size),
        _size(most),
        "–" if first.relative is None else f"{_largest(group):.2g}",
    )


def _size(largest: int | float | None) -> str:
    if largest is None:
        return "–"
    return f"{largest:,}" if isinstance(largest, int) and largest < 10**9 else f"{largest:.3g}"


def _share(part: int, whole: int) -> str:
    """A percentage that is 0% or 100% only if it is exactly that."""
    if part in (0, whole):
        return "0%" if not part else "100%"
    percent = 100 * part / whole
    return f"{percent:.2g}%" if percent < 99 else f"{min(percent, 99.99):.4g}%"


def _dtype_notes(tensors: Sequence[TensorDiff]) -> Iterator[Text]:
    dtypes = (t for t in tensors if t.dtype_a != t.dtype_b)
    for group in grouped(dtypes, lambda _: "", lambda t: (t.dtype_a, t.dtype_b)):
        first = group.first
        dtype = dtype_text(first.dtype_a or "", first.dtype_b or "")
        yield Text(f"dtype {dtype}: {_some(group.members)}, compared by value")


def _notes(tensors: Sequence[TensorDiff]) -> Iterator[Text]:
    yield from _dtype_notes(tensors)
    nonfinite = [t for t in tensors if t.nonfinite]
    if nonfinite:
        count = sum(t.nonfinite or 0 for t in nonfinite)
        yield Text(
            f"NaN or infinite: {count:,} of the elements that differ, in {_some(nonfinite)}; left out of largest "
            "and relative"
        )
    keys = [t for t in tensors if t.compared_as == "bits"]
    if keys:
        yield Text(f"PRNG keys: {_some(keys)}, compared by their bits only")


def _some(tensors: Sequence[TensorDiff]) -> str:
    """The number of tensors, and the name of one."""
    name = safe(tensors[0].name)
    return name if len(tensors) == 1 else f"{count_text(len(tensors), 'tensor')} ({name}, …)"


def _unlike(tensors: Sequence[TensorDiff], show_all: bool, most: int) -> Iterator[RenderableType]:
    """Tensors whose elements cannot be compared."""
    groups = groups_of(
        tensors, _name, lambda t: (t.status, t.detail, t.shape_a, t.shape_b), show_all
    )
    titles = ("tensor not compared", ">n", "why")
    yield from first_rows(titles, groups, _why, "rows", show_all=show_all, most=most)


def _why(group: TensorGroup[TensorDiff]) -> tuple[Cell, ...]:
    tensor = group.first
    dtype, shape = tensor.dtype_a or tensor.dtype_b, tensor.shape_a or tensor.shape_b
    why = f"{tensor.status} ({dtype} {shape_text(shape or ())})"
    return group.name, f"{group.count:,}", tensor.detail if tensor.status == "different" else why


def _verdict(found: DiffReport, tensors: int) -> Text:
    where = f"{duration_text(found.seconds)}\nA = {safe(found.a)}\nB = {safe(found.b)}"
    others = compared_leaves(list(found.leaves.values()))
    if not found.differences:
        all_of = count_text(len(found.tensors), "tensor")
        more = f" and {others_text(others)}" if others else ""
        return Text.assemble(("equal: ", "bold green"), f"{all_of}{more}, bit for bit, in {where}")
    unlike = sum(x.is_difference for x in found.leaves.values())
    words = f"{tensors:,} of {count_text(len(found.tensors), 'tensor')}"
    more = f" and {unlike:,} of {others_text(others)}" if unlike else ""
    return Text.assemble(("different: ", "bold red"), f"{words}{more}, in {where}")
