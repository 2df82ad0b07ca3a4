"""One tensor on a 4×2 mesh and on a mesh of 8: who holds what, and where each new slice comes from."""

from __future__ import annotations

from collections.abc import Iterator

from docs.pictures.svg import DEVICES, arrow, box, picture, text

SIDE, TOP, LEFT, GAP, SEAM = 256, 66, 20, 208, 3
ROWS, COLUMNS = 4, 2
"""The mesh of training; device d holds row d // 2, column d % 2 of the tensor."""


def trained() -> Iterator[str]:
    """The tensor as training saved it: a box for each device."""
    width, height = SIDE / COLUMNS, SIDE / ROWS
    for device in range(ROWS * COLUMNS):
        row, column = divmod(device, COLUMNS)
        x, y = LEFT + column * width, TOP + row * height
        yield box(x, y, width - SEAM, height - SEAM, fill=DEVICES[device])
        yield text(x + width / 2, y + height / 2 + 5, str(device), "on")


def served(left: float) -> Iterator[str]:
    """The tensor as serving wants it: a column for each device, in the colours of those who held its parts."""
    devices = ROWS * COLUMNS
    width, height = SIDE / devices, SIDE / ROWS
    for device in range(devices):
        x = left + device * width
        yield text(x + (width - SEAM) / 2, TOP - 7, str(device), "small name")
        for row in range(ROWS):
            held_by = row * COLUMNS + device * COLUMNS // devices
            height_here = height if row < ROWS - 1 else height - SEAM
            yield box(
                x, TOP + row * height, width - SEAM, height_here, fill=DEVICES[held_by], radius=0
            )


def drawing() -> str:
    """The whole picture."""
    right = LEFT + SIDE + GAP
    middle, centre = LEFT + SIDE + GAP / 2 - SEAM / 2, TOP + SIDE / 2
    words = (
        text(LEFT + SIDE / 2, 18, "saved by training", "name"),
        text(LEFT + SIDE / 2, 37, "mesh data=4, model=2"),
        text(right + SIDE / 2, 18, "wanted by serving", "name"),
        text(right + SIDE / 2, 37, "mesh model=8"),
        arrow(LEFT + SIDE + 22, centre, right - 28, centre, 3),
        text(middle, centre - 18, "reshard convert", "name code"),
        text(middle, centre + 28, "any CPU host,"),
        text(middle, centre + 47, "bounded memory"),
        text(LEFT + SIDE / 2, TOP + SIDE + 20, "axes: [data, model]", "code"),
        text(right + SIDE / 2, TOP + SIDE + 20, "axes: [null, model]", "code"),
        text(LEFT + SIDE / 2, TOP + SIDE + 40, "each device holds a block", "small quiet"),
        text(
            right + SIDE / 2,
            TOP + SIDE + 40,
            "each holds a column, from four blocks",
            "small quiet",
        ),
    )
    says = "One tensor, cut for a mesh of 4 by 2 devices and for a mesh of 8"
    parts = (*trained(), *served(right), *words)
    return picture(right + SIDE + LEFT, TOP + SIDE + 52, says, parts)
