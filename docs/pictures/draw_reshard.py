"""Draws docs/pictures/reshard.svg: one tensor on a 4×2 mesh, the same tensor on a mesh of 8.

Run it from the repository's root: ``python docs/pictures/draw_reshard.py``.
"""

from __future__ import annotations

from pathlib import Path

SIDE, TOP, GAP = 240, 54, 200
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#eeca3b", "#9d755d")
STYLE = (
    "text{font-family:system-ui,sans-serif;font-size:14px;fill:#444}"
    ".name{font-weight:600}.number{fill:#fff;font-weight:600}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}}"
)


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """A centred line of text."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="middle" class="{kind}">{words}</text>'


def shard(x: float, y: float, width: float, height: float, device: int) -> str:
    """One device's box of the tensor, in its colour, with its number."""
    box = (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" '
        f'fill="{COLOURS[device]}" stroke="#fff" stroke-width="2">'
        f"<title>device {device}</title></rect>"
    )
    return box + text(x + width / 2, y + height / 2 + 5, str(device), "number")


def tensor(left: float, rows: int, columns: int) -> str:
    """A tensor cut into rows × columns shards, devices in row-major order."""
    width, height = SIDE / columns, SIDE / rows
    return "\n".join(
        shard(left + c * width, TOP + r * height, width, height, r * columns + c)
        for r in range(rows)
        for c in range(columns)
    )


def drawing() -> str:
    """The whole picture."""
    right = 20 + SIDE + GAP
    middle = 20 + SIDE + GAP / 2
    centre = TOP + SIDE / 2
    arrow = (
        f'<path d="M{20 + SIDE + 24} {centre} H{right - 24} m-10 -7 l10 7 l-10 7" fill="none" '
        'stroke="#888" stroke-width="3" stroke-linecap="round" stroke-linejoin="round"/>'
    )
    parts = (
        text(20 + SIDE / 2, 20, "saved by training", "name"),
        text(20 + SIDE / 2, 40, "mesh data=4, model=2"),
        text(right + SIDE / 2, 20, "wanted by serving", "name"),
        text(right + SIDE / 2, 40, "mesh model=8"),
        tensor(20, 4, 2),
        arrow,
        text(middle, centre - 18, "reshard convert", "name"),
        text(middle, centre + 30, "any CPU host,"),
        text(middle, centre + 48, "bounded memory"),
        tensor(right, 1, 8),
        text(20 + SIDE / 2, TOP + SIDE + 22, "axes: [data, model]"),
        text(right + SIDE / 2, TOP + SIDE + 22, "axes: [null, model]"),
    )
    body = "\n".join(parts)
    width, height = right + SIDE + 20, TOP + SIDE + 36
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="One tensor, cut for a 4 by 2 mesh and for a mesh of 8">\n'
        f"<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


if __name__ == "__main__":
    Path(__file__).with_name("reshard.svg").write_text(drawing(), encoding="utf-8")
