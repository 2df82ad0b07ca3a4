"""Small pieces of text: names made safe for a terminal, shapes, chunks, encodings, meshes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from reshard import DeviceMesh, Encoding, Grid, TensorLayout, TensorSpec
from reshard.layout.axes import show_axes
from reshard.layout.changes import Changes
from reshard.record import duration_text as duration_text
from reshard.record import rate_text as rate_text
from reshard.record import safe as safe


def shape_text(shape: Sequence[int]) -> str:
    """``2048×8192``, or ``scalar``."""
    return "×".join(map(str, shape)) or "scalar"


def dtype_text(source: str, target: str) -> str:
    """One dtype, or both if it changes."""
    return source if source == target else f"{source} → {target}"


def parts_text(grid: Grid, chunk: Sequence[int] | None = None) -> str:
    """Number and shape of the parts: ``8 of 512×4096``; of uneven parts the largest shape."""
    if grid.count <= 1:
        return "whole" if grid.count else "none"
    largest = tuple(chunk or grid.largest)
    uneven = chunk is None and math.prod(largest) * grid.count != math.prod(grid.shape)
    return f"{grid.count:,} of {'≤ ' if uneven else ''}{shape_text(largest)}"


def chunks_text(spec: TensorSpec) -> str:
    """How storage cuts a tensor."""
    if spec.storage.count == 1 and spec.chunk_shape not in (None, spec.shape):
        return f"1 of {shape_text(spec.chunk_shape or ())}"
    return parts_text(spec.storage, spec.chunk_shape)


def encoding_text(encoding: Encoding) -> str:
    """``zstd-3 + crc32c``, ``raw``; ``raw pieces`` if the chunks are not stored as they are listed."""
    if encoding.gathered != "no":
        return "raw pieces"
    name = {"none": "raw", "tensorstore": "other codecs"}.get(
        encoding.compressor, encoding.compressor
    )
    level = "" if encoding.level is None else f"-{encoding.level}"
    turned = f", axes {list(encoding.axis_order)}" if encoding.axis_order else ""
    return f"{name}{level}{' + crc32c' if encoding.checksum else ''}{turned}"


def mesh_text(mesh: DeviceMesh) -> str:
    """``data=4, model=2``."""
    return ", ".join(f"{safe(n)}={s}" for n, s in zip(mesh.axis_names, mesh.shape, strict=True))


def axes_text(layout: TensorLayout | None) -> str:
    """``[data, null]`` as a layout file writes it, or a dash if none was recorded."""
    if layout is None:
        return "–"
    return safe(show_axes(layout.axes)) if any(layout.axes) else "replicated"


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
    pairs = [(kind, getattr(changes, kind)) for kind in changes.__struct_fields__]
    return [
        f"{kind} {rule if isinstance(rule, str) else '='.join(rule)}"
        for kind, rules in pairs
        for rule in rules
    ]
