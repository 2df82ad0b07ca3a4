"""Pictures of layouts in the terminal: a tensor's shards as boxes, each with its devices."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from rich.style import Style
from rich.text import Text

from reshard import DeviceMesh, TensorLayout
from reshard.layout.shard_picture import PictureCell, ShardPicture

MOST_ROWS = 8

FORMS = 3
"""Most lengths of a label."""

_COLOURS = (39, 208, 76, 213, 220, 51, 141, 203, 114, 75, 180, 228, 110, 175, 149, 45)
"""Colours of the 256-colour palette that are light enough for black letters."""


class Frame(Struct, frozen=True):
    """Space for a picture, in characters, and the characters of its lines."""

    width: int
    lines: int
    is_ascii: bool = False


def draw(picture: ShardPicture, frame: Frame) -> list[Text]:
    """Lines of equal width, at most ``frame.width`` if three boxes fit into that."""
    if not picture.count:
        return [Text("(empty)")]
    for most in (16, 12, 8, 6, 5, 4, 3):
        cells = picture.cells(MOST_ROWS, most)
        room = (frame.width - 1) // len(cells[0]) - 1
        for form in range(FORMS):
            widest = max(len(_label(cell, form)) for row in cells for cell in row)
            if widest <= room or (most == 3 and form == FORMS - 1):
                return _boxes(cells, form, max(room, widest), frame)
    raise AssertionError("the last form of the fewest columns is always taken")


def _label(cell: PictureCell, form: int) -> str:
    return cell.labels[: form + 1][-1]


def _boxes(
    cells: Sequence[Sequence[PictureCell]], form: int, width: int, frame: Frame
) -> list[Text]:
    lines_each = max(1, (frame.lines + 1) // len(cells) - 1)
    line, edge, *ends = list("-|+++++++++" if frame.is_ascii else "─│┌┬┐├┼┤└┴┘")
    across = [line * width] * len(cells[0])
    drawn = [Text(ends[0] + ends[1].join(across) + ends[2])]
    for number, row in enumerate(cells):
        drawn += [Text(ends[3] + ends[4].join(across) + ends[5])] if number else []
        is_gap = all(cell.device is None for cell in row)
        lines = 1 if is_gap else lines_each
        for each in range(lines):
            text = Text(edge)
            for cell in row:
                shown = _label(cell, form) if each == (lines - 1) // 2 else ""
                if frame.is_ascii:
                    shown = shown.translate({0x2026: "-", 0xD7: "x", 0x22EE: ":"})
                text.append(shown.center(width), style=_style(cell.device)).append(edge)
            drawn.append(text)
    return [*drawn, Text(ends[6] + ends[7].join(across) + ends[8])]


def _style(device: int | None) -> Style:
    if device is None:
        return Style.null()
    return Style(color="black", bgcolor=f"color({_COLOURS[device % len(_COLOURS)]})")


def draw_mesh(mesh: DeviceMesh, frame: Frame) -> list[Text]:
    """The mesh itself: its last axis across, the others down, each device in its colour."""
    return draw(ShardPicture(mesh.shape, TensorLayout(mesh.axis_names, mesh)), frame)
