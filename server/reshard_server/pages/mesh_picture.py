"""Pictures of meshes: each device is a box whose colours show the source shards of its bytes.

The last axis of the mesh runs across, all others run down; long rows are broken::

    source, mesh (data=2, model=2)         target, mesh (model=4)
    ┌─ 0 ─┬─ 1 ─┐                          ┌─ 0 ─┬─ 1 ─┬─ 2 ─┬─ 3 ─┐
    │  0  │  1  │   each holds a shard     │0│ 2 │0│ 2 │1│ 3 │1│ 3 │   half from each of two
    ├─ 2 ─┼─ 3 ─┤                          └─────┴─────┴─────┴─────┘
    │  2  │  3  │
    └─────┴─────┘

Only boxes that are shown are computed. A tensor that is split without a mesh has a box for each shard.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_DEVICES = 128
"""Limit of the boxes of one mesh, and of the rows of its table."""

MOST_PARTS = 16
"""Limit of the source shards that are listed for one device."""

MOST_COLUMNS = 16
WIDTH, HEIGHT, GAP, EDGE = 72, 44, 6, 4
SMALL_WIDTH = 34
COLOURS = 8
LETTERS_WIDTH = 15
"""Narrower segments have no number; the box's title and the table have it."""

Share = tuple[int, float]
"""A source shard, and the part of the bytes that comes from it."""


@dataclass(frozen=True, slots=True)
class BoxPart:
    """A coloured part of a box."""

    x: float
    width: float
    colour: str
    label: str


@dataclass(frozen=True, slots=True)
class Device:
    """One device, or one shard if there is no mesh.

    Attributes:
        shard: its shard; shards are numbered row by row.
        place: its coordinates on the mesh.
        origin: the source of its bytes, as text.
    """

    number: int
    shard: int
    place: str
    origin: str
    x: float
    y: float
    width: float
    pieces: tuple[BoxPart, ...]


@dataclass(frozen=True, slots=True)
class MeshPicture:
    """The picture of a plan's source or target.

    Attributes:
        count: the number of devices, including those that are not drawn.
        is_mesh: True if the boxes are devices of a mesh, False for shards.
    """

    devices: tuple[Device, ...]
    count: int
    is_mesh: bool
    width: float
    height: float

    @property
    def is_cut(self) -> bool:
        return self.count > len(self.devices)


@dataclass(frozen=True)
class TensorSide:
    """A tensor in the source or in the target: its mesh, if any, and its split."""

    mesh: Mapping[str, Any] | None
    axes: Sequence[Any]
    parts: Sequence[int]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the mesh; one row without a mesh."""
        return tuple(self.mesh["shape"]) if self.mesh else (math.prod(self.parts),)

    def place(self, device: int) -> dict[str, int]:
        """Coordinates of a device by the names of the axes; devices count row by row."""
        if self.mesh is None:
            return {}
        at = {}
        pairs = zip(self.mesh["axes"], self.mesh["shape"], strict=True)
        for name, size in reversed(list(pairs)):
            device, at[name] = divmod(device, size)
        return dict(reversed(at.items()))

    def shard(self, device: int) -> int:
        """The shard of a device, numbered row by row over the tensor."""
        if self.mesh is None:
            return device
        sizes = dict(zip(self.mesh["axes"], self.mesh["shape"], strict=True))
        at, number = self.place(device), 0
        for axis in self.axes:
            for name in _names(axis):
                number = number * sizes[name] + at[name]
        return number


def _names(axis: Any) -> Sequence[str]:
    return () if axis is None else (axis,) if isinstance(axis, str) else tuple(axis)


def source_of(tensor: Mapping[str, Any]) -> TensorSide:
    """The source side of a planned tensor."""
    mesh = tensor["source_mesh"] if tensor["source_axes"] is not None else None
    return TensorSide(mesh, tensor["source_axes"] or (), tensor["source_parts"])


def target_of(tensor: Mapping[str, Any]) -> TensorSide:
    """The target side of a planned tensor."""
    has_mesh = tensor["target_axes"] is not None and not tensor["partition"]
    mesh = tensor["target_mesh"] if has_mesh else None
    return TensorSide(mesh, tensor["target_axes"] or (), tensor["target_parts"])


def source_picture(tensor: Mapping[str, Any]) -> MeshPicture:
    """Each device of the source with its shard."""
    side = source_of(tensor)
    return _picture(side, {}, is_source=True)


def target_picture(tensor: Mapping[str, Any]) -> MeshPicture:
    """Each device of the target with the source of its bytes, if the plan has shares."""
    shares: dict[int, list[Share]] = {}
    for target, source, share in tensor["shares"] or ():
        shares.setdefault(target, []).append((source, share))
    return _picture(target_of(tensor), shares, is_source=False)


def _picture(end: TensorSide, shares: Mapping[int, list[Share]], *, is_source: bool) -> MeshPicture:
    count = math.prod(end.shape)
    shown = min(count, MOST_DEVICES)
    columns = max(1, min(end.shape[-1] if end.shape else 1, MOST_COLUMNS))
    wide = WIDTH if columns <= 8 else SMALL_WIDTH
    devices = []
    for number in range(shown):
        shard = end.shard(number)
        held = [(shard, 1.0)] if is_source else shares.get(shard, [])
        row, column = divmod(number, columns)
        devices.append(_device(end, number, shard, held, column, row, wide, is_source))
    rows = -(-shown // columns)
    return MeshPicture(
        tuple(devices),
        count,
        end.mesh is not None,
        2 * EDGE + columns * (wide + GAP) - GAP,
        2 * EDGE + rows * (HEIGHT + GAP) - GAP if rows else 2 * EDGE,
    )


def _device(
    end: TensorSide, number: int, shard: int, held: list[Share], column: int, row: int, wide: float, is_source: bool
) -> Device:  # fmt: skip
    place = ", ".join(f"{name}={at}" for name, at in end.place(number).items())
    x, y = EDGE + column * (wide + GAP), EDGE + row * (HEIGHT + GAP)
    origin = f"shard {shard}" if is_source else origin_text(held)
    return Device(number, shard, place, origin, x, y, wide, _pieces(held, x, wide))


def _pieces(held: list[Share], x: float, wide: float) -> tuple[BoxPart, ...]:
    found = []
    for source, share in held:
        width = share * wide
        label = str(source) if width >= max(LETTERS_WIDTH, 7 * len(str(source)) + 2) else ""
        found.append(BoxPart(round(x, 2), round(width, 2), f"c{source % COLOURS}", label))
        x += width
    return tuple(found)


def origin_text(held: Sequence[Share]) -> str:
    """``50 % of shard 0, 50 % of shard 2``: the source of a device's bytes."""
    if not held:
        return "unknown"
    parts = [f"{percent_text(share)} from shard {source}" for source, share in held[:MOST_PARTS]]
    rest = len(held) - len(parts)
    return ", ".join(parts) + (f" and {rest:,} more" if rest else "")


def percent_text(share: float) -> str:
    """``50 %``, ``0.2 %``."""
    percent = 100 * share
    return (
        f"{percent:.0f} %"
        if percent >= 1 and abs(percent - round(percent)) < 0.05
        else f"{percent:.2g} %"
    )
