"""Pictures of layouts: a tensor's shards as boxes, each with its devices.

The last split dimension runs across, all other split dimensions run down together::

    [data, model] on a mesh (data=2, model=2)      [null, model] on a mesh (model=4)
    ┌───────┬───────┐                              ┌───┬───┬───┬───┐
    │   0   │   1   │                              │   │   │   │   │
    ├───────┼───────┤                              │ 0 │ 1 │ 2 │ 3 │
    │   2   │   3   │                              │   │   │   │   │
    └───────┴───────┘                              └───┴───┴───┴───┘

Only boxes that are shown are computed, so a mesh of a million devices costs no more than one of eight.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from msgspec import Struct
from rich.style import Style
from rich.text import Text

from reshard import DeviceMesh, Grid, TensorLayout
from reshard.layout.axes import axis_names

MOST_ROWS = 8
MOST_COLUMNS = 16
LISTED = 4
"""Devices of one box that are named one by one."""

FORMS = 3
"""Most lengths of a label."""

_COLOURS = (39, 208, 76, 213, 220, 51, 141, 203, 114, 75, 180, 228, 110, 175, 149, 45)
"""Colours of the 256-colour palette that are light enough for black letters."""


class Holders(Struct, frozen=True):
    """The devices of one box: the first few, the last one, and their number."""

    first: tuple[int, ...]
    last: int
    count: int

    @property
    def labels(self) -> tuple[str, ...]:
        """Texts for the box, from the longest to the shortest."""
        first = str(self.first[0])
        if self.count == 1:
            return (first,)
        listed = (",".join(map(str, self.first)),) if self.count <= LISTED else ()
        return (*listed, f"{first}…{self.last} ×{self.count:,}", f"{first}…")


def holders(layout: TensorLayout, mesh: DeviceMesh, index: tuple[int, ...]) -> Holders:
    """The devices of the box at ``index`` of the layout's grid; devices are numbered row-major over the mesh.

    >>> mesh = DeviceMesh((2, 4), ("data", "model"))
    >>> holders(TensorLayout((None, "model")), mesh, (0, 3)).first
    (3, 7)
    """
    at: dict[str, int] = {}
    for axis, place in zip(layout.axes, index, strict=False):
        for name in reversed(axis_names(axis)):
            place, at[name] = divmod(place, mesh.axis_size(name))
    ranges = [
        range(at[name], at[name] + 1) if name in at else range(size)
        for name, size in zip(mesh.axis_names, mesh.shape, strict=True)
    ]
    first = itertools.islice(itertools.product(*ranges), LISTED)
    last = tuple(r[-1] for r in ranges)
    return Holders(
        tuple(_device(mesh, c) for c in first), _device(mesh, last), math.prod(map(len, ranges))
    )


def _device(mesh: DeviceMesh, coordinate: Sequence[int]) -> int:
    device = 0
    for place, size in zip(coordinate, mesh.shape, strict=True):
        device = device * size + place
    return device


class PictureSplit(Struct, frozen=True):
    """A tensor cut into shards; without a layout over a mesh the shards are numbered, row-major."""

    grid: Grid
    layout: TensorLayout | None = None

    def holders(self, index: tuple[int, ...]) -> Holders:
        """The devices of a shard, or the shard's own number."""
        if self.layout is not None and self.layout.device_mesh is not None:
            return holders(self.layout, self.layout.device_mesh, index)
        number = 0
        for place, parts in zip(index, self.grid.parts, strict=True):
            number = number * parts + place
        return Holders((number,), number, 1)

    @property
    def across(self) -> int | None:
        """The dimension that runs from left to right."""
        split = [d for d, parts in enumerate(self.grid.parts) if parts > 1]
        is_row = len(split) == 1 and split[0] != len(self.grid.shape) - 1
        return split[-1] if split and not is_row else None

    @property
    def rows(self) -> int:
        return self.grid.count // self.columns if self.grid.count else 0

    @property
    def columns(self) -> int:
        return 1 if self.across is None else self.grid.parts[self.across]

    def at(self, row: int, column: int) -> Holders:
        """The devices of the box at a place of the picture."""
        index = [0] * len(self.grid.parts)
        for dim in reversed(range(len(index))):
            if dim == self.across:
                index[dim] = column
            else:
                row, index[dim] = divmod(row, self.grid.parts[dim])
        return self.holders(tuple(index))


class Frame(Struct, frozen=True):
    """Space for a picture, in characters, and the characters of its lines."""

    width: int
    lines: int
    is_ascii: bool = False


Place = int | None
"""A row or column, or None for a gap."""


def draw(split: PictureSplit, frame: Frame) -> list[Text]:
    """Lines of equal width, at most ``frame.width`` if three boxes fit into that."""
    if not split.grid.count:
        return [Text("(empty)")]
    rows = _places(split.rows, MOST_ROWS)
    for most in (MOST_COLUMNS, 12, 8, 6, 5, 4, 3):
        columns = _places(split.columns, most)
        room = (frame.width - 1) // len(columns) - 1
        for form in range(FORMS):
            labels = _labels(split, rows, columns, form)
            widest = max(len(label) for line in labels for label, _ in line)
            if widest <= room or (most == 3 and form == FORMS - 1):
                return _boxes(labels, max(room, widest), frame)
    raise AssertionError("the last form of the fewest columns is always taken")


def _places(count: int, most: int) -> list[Place]:
    """All places, or the first ones, a gap and the last."""
    if count <= most:
        return list(range(count))
    return [*range(most - 2), None, count - 1]


Label = tuple[str, int | None]
"""The text in a box, and the device that gives its colour."""


def _labels(
    split: PictureSplit, rows: Sequence[Place], columns: Sequence[Place], form: int
) -> list[list[Label]]:
    return [[_label(split, row, column, form) for column in columns] for row in rows]


def _label(split: PictureSplit, row: Place, column: Place, form: int) -> Label:
    if row is None or column is None:
        return "…" if row is not None or column is None else "⋮", None
    found = split.at(row, column)
    labels = found.labels
    return labels[min(form, len(labels) - 1)], found.first[0]


def _boxes(labels: Sequence[Sequence[Label]], width: int, frame: Frame) -> list[Text]:
    lines_each = max(1, (frame.lines + 1) // len(labels) - 1)
    top, middle, bottom = _rules(len(labels[0]), width, frame.is_ascii)
    drawn = [top]
    for number, row in enumerate(labels):
        drawn += [middle] if number else []
        is_gap = all(device is None for _, device in row)
        drawn += _box_lines(row, width, 1 if is_gap else lines_each, frame.is_ascii)
    return [*drawn, bottom]


def _rules(columns: int, width: int, is_ascii: bool) -> Iterator[Text]:
    for left, inner, right in ("+++", "+++", "+++") if is_ascii else ("┌┬┐", "├┼┤", "└┴┘"):
        yield Text(left + inner.join([("-" if is_ascii else "─") * width] * columns) + right)


def _box_lines(row: Sequence[Label], width: int, lines: int, is_ascii: bool) -> Iterator[Text]:
    edge = "|" if is_ascii else "│"
    for line in range(lines):
        text = Text(edge)
        for label, device in row:
            shown = label if line == (lines - 1) // 2 else ""
            text.append(_encodable(shown, is_ascii).center(width), style=_style(device))
            text.append(edge)
        yield text


def _encodable(label: str, is_ascii: bool) -> str:
    return label.translate({0x2026: "-", 0xD7: "x", 0x22EE: ":"}) if is_ascii else label


def _style(device: int | None) -> Style:
    if device is None:
        return Style.null()
    return Style(color="black", bgcolor=f"color({_COLOURS[device % len(_COLOURS)]})")


def draw_mesh(mesh: DeviceMesh, frame: Frame) -> list[Text]:
    """The mesh itself: its last axis across, the others down, each device in its colour."""
    grid = Grid.regular(mesh.shape, (1,) * len(mesh.shape))
    return draw(PictureSplit(grid, TensorLayout(mesh.axis_names, mesh)), frame)
