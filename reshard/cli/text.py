"""Small pieces of text: names made safe for a terminal, shapes, chunks, encodings, meshes; names that differ only in numbers as one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from reshard import DeviceMesh, Grid, MapSummary, TensorInfo, TensorLayout
from reshard.answers.record import duration_text as duration_text
from reshard.answers.record import rate_text as rate_text
from reshard.answers.record import safe as safe
from reshard.answers.shared import Axes, Shape
from reshard.layout.axes import show_axes
from reshard.layout.changes import Changes


def shape_text(shape: Sequence[int]) -> str:
    """``2048×8192``, or ``scalar``."""
    return "×".join(map(str, shape)) or "scalar"


def dtype_text(source: str, target: str) -> str:
    """One dtype, or both if it changes."""
    return source if source == target else f"{source} → {target}"


def parts_text(grid: Grid) -> str:
    """Number and shape of the parts of a grid."""
    return count_of_parts(grid.count, grid.largest, grid.shape)


def count_of_parts(count: int, largest: Shape, shape: Shape) -> str:
    """Number and shape of parts: ``8 of 512×4096``; of uneven parts the largest shape."""
    if count <= 1:
        return "whole" if count else "none"
    uneven = math.prod(largest) * count != math.prod(shape)
    return f"{count:,} of {'≤ ' if uneven else ''}{shape_text(largest)}"


def chunks_text(shape: Shape, count: int, chunk: Shape | None, largest: Shape | None) -> str:
    """The chunks of a tensor in storage: padded to ``chunk``, else of at most ``largest``."""
    if chunk is None or count == 0 or (count == 1 and chunk == shape):
        return count_of_parts(count, largest or shape, shape)
    return f"{count:,} of {shape_text(chunk)}"


def encoding_text(tensor: TensorInfo) -> str:
    """``zstd-3 + crc32c``, ``raw``; ``raw pieces`` if the chunks are not stored as they are listed."""
    if tensor.is_gathered:
        return "raw pieces"
    name = {"none": "raw", "tensorstore": "other codecs"}.get(tensor.compressor, tensor.compressor)
    level = "" if tensor.level is None else f"-{tensor.level}"
    turned = f", axes {list(tensor.axis_order)}" if tensor.axis_order else ""
    if len(tensor.axis_order) > len(tensor.shape):
        turned = ", shuffled"
    return f"{name}{level}{' + crc32c' if tensor.checksum else ''}{turned}"


def mesh_text(mesh: DeviceMesh) -> str:
    """``data=4, model=2``."""
    return sizes_text(mesh.axis_names, mesh.shape)


def sizes_text(names: Sequence[str], sizes: Sequence[int]) -> str:
    """The axes of a mesh: ``data=4, model=2``."""
    return ", ".join(f"{safe(n)}={s}" for n, s in zip(names, sizes, strict=True))


def layout_text(layout: TensorLayout | None) -> str:
    """The axes of a layout, or a dash if none was recorded."""
    return axes_text(None if layout is None else layout.axes)


def axes_text(axes: Axes | None) -> str:
    """``[data, null]`` as a layout file writes it, or a dash if none was recorded."""
    if axes is None:
        return "–"
    return safe(show_axes(axes)) if any(axes) else "replicated"


def partition_text(partition: Mapping[str, Any]) -> str:
    """``fixed_shards 6 along dimension 0``, ``div 4 along dimension 0 by max_size 1048576``."""
    strategy = safe(str(partition.get("strategy")))
    amount = partition.get(strategy, partition.get("shards"))
    chosen = partition.get("partitioner")
    words = (
        " ".join(safe(f"{k} {v}") for k, v in chosen.items()) if isinstance(chosen, Mapping) else ""
    )
    by = f" by {words}" if words else ""
    return f"{strategy} {safe(str(amount))} along dimension {safe(str(partition.get('axis')))}{by}"


def count_text(count: int, noun: str) -> str:
    """``1 tensor``, ``2,000 tensors``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def map_text(made: MapSummary) -> str:
    """The effect of a map on a source, and that every element is used."""
    kinds = ((made.exact, "exact"), (made.rounded, "rounded"), (made.cast, "cast"))
    every = "all elements but those of crops" if made.cropped else "every element"
    tied = f"; {count_text(len(made.tied), 'pair')} must be equal" if made.tied else ""
    return (
        f"map: {count_text(made.sources, 'tensor')} → {made.targets:,}, {every} used and written once; "
        f"{', '.join(f'{n:,} {kind}' for n, kind in kinds if n)}{tied}"
    )


def ratio_text(ratio: float) -> str:
    """``1.25×``."""
    return f"{ratio:.2f}×"


def and_text(parts: Sequence[str]) -> str:
    """``one``, ``one and two``, ``one, two and three``; empty parts are left out."""
    *first, last = filter(None, parts)
    return f"{', '.join(first)} and {last}" if first else last


def some_text(names: Sequence[str], most: int = 5) -> str:
    """The first few names, and the number of the others."""
    shown = ", ".join(map(safe, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def rule_words(changes: Changes) -> list[str]:
    """``select ^params/`` and ``cast kernel$=bfloat16``, one for each rule."""
    pairs = [(kind, getattr(changes, kind)) for kind in Changes.__struct_fields__]
    return [
        f"{kind} {rule if isinstance(rule, str) else '='.join(rule)}"
        for kind, rules in pairs
        for rule in rules
    ]


T = TypeVar("T")

_NUMBER = re.compile(r"(\d+)", re.ASCII)


class TensorGroup(Struct, Generic[T], frozen=True):
    """Members that are alike; ``name`` stands for all of their names."""

    name: str
    members: tuple[T, ...]

    @property
    def first(self) -> T:
        return self.members[0]

    @property
    def count(self) -> int:
        return len(self.members)


def grouped(
    items: Iterable[T], name_of: Callable[[T], str], alike: Callable[[T], Hashable]
) -> list[TensorGroup[T]]:
    """Groups in the order of their first members."""
    found: dict[Hashable, list[T]] = {}
    for item in items:
        key = (_NUMBER.sub("0", name_of(item)), alike(item))
        found.setdefault(key, []).append(item)
    return [TensorGroup(common_name(list(map(name_of, m))), tuple(m)) for m in found.values()]


def groups_of(
    items: Iterable[T], name_of: Callable[[T], str], alike: Callable[[T], Hashable], show_all: bool
) -> list[TensorGroup[T]]:
    """The groups, or one for each item if all are to be shown."""
    if show_all:
        return [TensorGroup(name_of(item), (item,)) for item in items]
    return grouped(items, name_of, alike)


def common_name(names: Sequence[str]) -> str:
    """One name for names that differ in numbers only.

    >>> common_name(["a/0/w", "a/1/w", "a/2/w"])
    'a/{0…2}/w'
    """
    if len(names) == 1:
        return names[0]
    split = list(map(_NUMBER.split, names))
    return "".join(map(_common_piece, zip(*split, strict=True)))


def _common_piece(pieces: tuple[str, ...]) -> str:
    unlike = sorted(set(pieces), key=_numeric_order)
    if len(unlike) == 1:
        return unlike[0]
    return f"{{{unlike[0]}{'…' if len(unlike) > 2 else ','}{unlike[-1]}}}"


def _numeric_order(digits: str) -> tuple[int, str, str]:
    """Sorts digits by value without converting them to numbers, however many digits there are."""
    significant = digits.lstrip("0")
    return len(significant), significant, digits
