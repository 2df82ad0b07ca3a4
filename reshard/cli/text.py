"""Small pieces of text: names made safe for a terminal, shapes, chunks, encodings, meshes."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from reshard import DeviceMesh, Encoding, Grid, TensorLayout, TensorSpec
from reshard.geometry.sizes import format_bytes
from reshard.layout.axes import show_axes
from reshard.layout.changes import Changes

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that move the cursor, turn the writing direction, or do not encode."""


def safe(text: str, keep: str = "") -> str:
    r"""``text`` with everything that could steer a terminal written as an escape.

    Names come from files and may contain anything. Characters of ``keep`` stay.

    >>> safe("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or _is_safe(c) else _escaped(c) for c in text)


def _is_safe(char: str) -> bool:
    return unicodedata.category(char) not in _UNSAFE


def _escaped(char: str) -> str:
    return ascii(char)[1:-1]


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
    """``fixed_shards 6 along dimension 0``."""
    strategy = str(partition.get("strategy"))
    amount = partition.get(strategy, partition.get("shards"))
    return f"{strategy} {amount} along dimension {partition.get('axis')}"


def count_text(count: int, noun: str) -> str:
    """``1 tensor``, ``2,000 tensors``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def ratio_text(ratio: float) -> str:
    """``1.25×``."""
    return f"{ratio:.2f}×"


def rate_text(nbytes: float, seconds: float) -> str:
    """Bytes per second; empty if the time was too short to measure."""
    return f"{format_bytes(nbytes / seconds)}/s" if seconds > 1e-3 else "–"


def duration_text(seconds: float) -> str:
    """``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


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
