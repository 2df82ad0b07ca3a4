"""Types of members that several answers have: shapes, axes, meshes, strategies, digests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct

Shape = tuple[int, ...]
Axes = tuple[str | tuple[str, ...] | None, ...]
AxisTypes = tuple[Literal["Auto", "Explicit", "Manual"], ...] | None
Strategy = Literal["copy", "whole", "scatter", "weave", "block"]
"""The way in which pieces are moved.

copy: identical chunks are copied as they are, encoded.
whole: each target chunk is one small source chunk: decoded, encoded and written in one go.
scatter: each source chunk is decoded once in a stream; its pieces go straight to their places in
  raw target chunks.
weave: as scatter, but adjacent source chunks are decoded in lock step, so that whole target rows are written.
block: target chunks are assembled in memory and written whole; for compressed targets, and if pieces would be too
  short. A block that exceeds the memory is cut, and then source chunks may be decoded more than once.
"""

Digest = Annotated[str, Meta(description="CRC-64/NVME, 16 hex digits.")]

QuantizedText = Annotated[
    str,
    Meta(
        description="The weights of a source that are codes with scales, such as 'fp8, blocks of 128×128: 1 weight with scales, 1 as they are'; "
        "with dequantize also the bytes before and after."
    ),
]

MissingNumbers = Annotated[
    Mapping[str, int],
    Meta(
        description="How many chunks of each source tensor are not stored; the fill value is taken."
    ),
]


class MeshDocument(Struct, frozen=True):
    """A mesh of devices."""

    axes: tuple[str, ...]
    shape: Shape


class RecordedMesh(MeshDocument, frozen=True):
    """A mesh with the recorded types of its axes and its devices."""

    axis_types: AxisTypes
    device_ids: tuple[int, ...] | None


Change = Literal["exact", "rounded", "cast"]
"""exact: every bit of a tensor is the source's; rounded: arithmetic may have rounded it; cast: it has another dtype."""
