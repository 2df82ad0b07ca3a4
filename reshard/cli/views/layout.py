"""The output of ``layout``: both meshes, then each kind of tensor as the source and the target cut it, its shards as boxes with their devices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec import Struct
from rich.console import Console
from rich.style import Style
from rich.text import Text

from reshard import DeviceMesh, Grid, LayoutPreview, TensorLayout, TensorPreview, TensorSpec
from reshard.cli.console import UNLIMITED, show
from reshard.cli.tables import cap_note, names_text, warning
from reshard.cli.text import (
    count_text,
    grouped,
    layout_text,
    mesh_text,
    partition_text,
    parts_text,
    safe,
    shape_text,
    some_text,
)
from reshard.geometry.sizes import format_bytes
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


MOST_KINDS = 8
MOST_DRAWN_DEVICES = 64
GAP = "   "
PICTURE_COLUMNS = 44
"""Most columns of a picture; wider ones show nothing more."""

LINES_1D, LINES_ND = 1, 7
"""Lines within the frame of a picture, by rank."""


def show_layout(
    console: Console, preview: LayoutPreview, show_all: bool, *, is_changed: bool = True
) -> None:
    """Prints the picture, both sides beside each other if the console is wide enough.

    Without ``is_changed`` source and target are equal, and drawn once.
    """
    if not is_changed:
        _show_as_it_is(console, preview.tensors, show_all)
        return
    _show_meshes(console, preview.tensors)
    cut = [t for t in preview.tensors if not _is_whole(t)]
    _show_kinds(console, cut, show_all)
    whole = [t for t in preview.tensors if _is_whole(t)]
    _show_listed(console, "whole on every device, before and after", whole)
    for text in preview.warnings:
        show(console, warning(text))


def _show_as_it_is(console: Console, tensors: Sequence[TensorPreview], show_all: bool) -> None:
    """One picture for each kind of tensor, and lists of tensors that are whole or unknown."""
    meshes = _meshes([t.source_spec for t in tensors])
    for mesh in meshes:
        for line in _mesh_lines("", mesh, _frame(console, 1)):
            show(console, line)
    if not meshes:
        show(console, Text("mesh: not recorded"))
    cut = [t for t in tensors if not _is_whole(t)]
    _show_kinds(console, cut, show_all, is_changed=False)
    recorded = [t for t in tensors if _is_whole(t) and t.source_mesh is not None]
    _show_listed(console, "whole on every device", recorded)
    unknown = [t for t in tensors if t.source_mesh is None]
    _show_listed(console, "no layout recorded", unknown)


def _show_kinds(
    console: Console, cut: Sequence[TensorPreview], show_all: bool, *, is_changed: bool = True
) -> None:
    """The kinds of tensors that are cut, those with the most bytes first."""
    kinds = sorted(_kinds(cut).values(), key=_nbytes, reverse=True)
    shown = kinds if show_all else kinds[:MOST_KINDS]
    for kind in shown:
        _show_kind(console, kind, is_changed)
    if note := cap_note(len(shown), len(kinds), "kinds of tensors"):
        show(console, Text(note, style="dim"))


def _is_whole(tensor: TensorPreview) -> bool:
    """True if it is cut on neither side, as far as it is known."""
    return bool(tensor.slices.count <= 1 and tensor.source_spec.slices.count <= 1)


def _show_listed(console: Console, title: str, tensors: Sequence[TensorPreview]) -> None:
    """Two lines for tensors that are not drawn: their size, and names."""
    if tensors:
        size = f"{count_text(len(tensors), 'tensor')}, {format_bytes(_nbytes(tensors))}"
        console.print()
        show(console, Text.assemble((f"{title}: ", "bold"), size))
        show(console, Text(_names(console, tensors, 6)))


def _names(console: Console, tensors: Sequence[TensorPreview], most: int) -> str:
    """The first few names; a pipe gets all of them."""
    groups = grouped(
        tensors, lambda t: names_text(t.source_spec.name, t.target_spec.name), lambda _: None
    )
    names = [group.name for group in groups]
    return some_text(names, most if console.width < UNLIMITED else len(names))


def _kinds(tensors: Sequence[TensorPreview]) -> dict[object, list[TensorPreview]]:
    """Tensors of one shape that are cut alike on both sides."""
    kinds: dict[object, list[TensorPreview]] = {}
    for tensor in tensors:
        key = (
            tensor.source_spec.shape,
            tensor.source_spec.layout,
            tensor.slices,
            tensor.target_spec.layout,
        )
        kinds.setdefault(key, []).append(tensor)
    return kinds


def _nbytes(kind: Sequence[TensorPreview]) -> int:
    return sum(t.source_spec.nbytes for t in kind)


def _show_meshes(console: Console, tensors: Sequence[TensorPreview]) -> None:
    sources = _meshes([t.source_spec for t in tensors])
    targets = _meshes([t.target_spec for t in tensors])
    frame = _frame(console, 1)
    left = [line for mesh in sources for line in _mesh_lines("source", mesh, frame)]
    right = [line for mesh in targets for line in _mesh_lines("target", mesh, frame)]
    _show_beside(console, left or [Text("source mesh: not recorded")], right)


def _meshes(specs: Sequence[TensorSpec]) -> list[DeviceMesh]:
    layouts = (s.layout for s in specs)
    return list(dict.fromkeys(x.device_mesh for x in layouts if x and x.device_mesh))


def _mesh_lines(side: str, mesh: DeviceMesh, frame: Frame) -> Iterator[Text]:
    yield Text.assemble((f"{side} mesh ".lstrip(), "bold"), mesh_text(mesh))
    names = [safe(name) for name in mesh.axis_names]
    devices, across = count_text(mesh.size, "device"), names[-1]
    if mesh.size > MOST_DRAWN_DEVICES:
        yield Text(f"{devices}, {across} varies fastest")
        return
    down = f", {', '.join(names[:-1])} down" if names[1:] else ""
    yield Text(f"{devices}: {across} across{down}")
    yield from draw_mesh(mesh, frame)


def _show_kind(console: Console, kind: Sequence[TensorPreview], is_changed: bool) -> None:
    first = kind[0]
    title = f"{shape_text(first.source_spec.shape)}, {count_text(len(kind), 'tensor')}, "
    console.print()
    show(console, Text(title + format_bytes(_nbytes(kind)), style="bold"))
    show(console, Text(_names(console, kind, 3)))
    frame = _frame(console, _lines(first))
    if is_changed:
        left, right = _source_lines(first, frame, "source "), _target_lines(first, frame)
        _show_beside(console, list(left), list(right))
    else:
        _show_beside(console, list(_source_lines(first, frame)), [])


def _lines(tensor: TensorPreview) -> int:
    """Height within the frame, the same on both sides."""
    grids = (tensor.source_spec.slices, tensor.slices)
    most = max(2 * min(ShardPicture(grid.parts).rows, MOST_ROWS) - 1 for grid in grids)
    return max(most, LINES_1D if len(tensor.source_spec.shape) < 2 else LINES_ND)


def _source_lines(tensor: TensorPreview, frame: Frame, side: str = "") -> Iterator[Text]:
    if tensor.source_mesh is None:
        yield Text("source: the layout was not recorded")
        return
    yield Text(f"{side}{layout_text(tensor.source_spec.layout)}")
    yield from _side_lines(tensor.source_spec, tensor.source_spec.slices, frame)


def _target_lines(tensor: TensorPreview, frame: Frame) -> Iterator[Text]:
    if tensor.partition is None:
        yield Text(f"target {layout_text(tensor.target_spec.layout)}")
    else:
        yield Text(f"target {partition_text(tensor.partition)}")
    yield from _side_lines(tensor.target_spec, tensor.slices, frame)


def _side_lines(spec: TensorSpec, grid: Grid, frame: Frame) -> Iterator[Text]:
    """The number and size of shards and the number of devices of each, then the picture."""
    picture = ShardPicture(grid.parts, spec.layout)
    if grid.count:
        nbytes = math.prod(grid.largest) * spec.itemsize
        each = " each" if grid.count > 1 else ""
        copies = picture.holders((0,) * len(grid.parts)).count
        held = (
            ", numbered" if spec.layout is None else f", {copies:,} replicas" if copies > 1 else ""
        )
        yield Text(f"{parts_text(grid)}, {format_bytes(nbytes)}{each}{held}")
    else:
        yield Text("no elements")
    yield from draw(picture, frame)


def _frame(console: Console, lines: int) -> Frame:
    half = (console.width - len(GAP)) // 2
    return Frame(min(PICTURE_COLUMNS, max(16, half)), lines, console.options.ascii_only)


def _show_beside(console: Console, left: Sequence[Text], right: Sequence[Text]) -> None:
    """Both blocks in two columns, or one after the other if they are too wide."""
    width = max((line.cell_len for line in left), default=0)
    other = max((line.cell_len for line in right), default=0)
    if width + len(GAP) + other > console.width:
        for line in (*left, *right):
            show(console, line)
        return
    for row in range(max(len(left), len(right))):
        line = left[row].copy() if row < len(left) else Text()
        line.append(" " * (width - line.cell_len) + GAP)
        line.append_text(right[row] if row < len(right) else Text())
        line.rstrip()
        show(console, line)
