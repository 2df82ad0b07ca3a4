"""Shapes and words of a picture; every colour can be read on white and on a dark page."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Literal

DEVICES = ("#3f6ea3", "#d97a12", "#47903f", "#cf4446", "#3d8f8a", "#95618a", "#a3820f", "#7f5f4d")
"""The colours of eight devices, dark enough for white digits."""
STYLE = (
    "text{font-family:system-ui,-apple-system,'Segoe UI',sans-serif;font-size:14px;fill:#3a4048}"
    ".name{font-weight:600}.on{fill:#fff;font-weight:600}.small{font-size:12px}"
    ".quiet{fill:#666e78}.code{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:13px}"
    ".line{stroke:#7d8590}.faint{stroke:#b4bac2}.card{fill:#f3f5f8;stroke:#d5dae1}"
    "@media(prefers-color-scheme:dark){text{fill:#d6dbe2}.on{fill:#fff}.quiet{fill:#9aa4b0}"
    ".line{stroke:#8b949e}.faint{stroke:#4c545e}.card{fill:#20252c;stroke:#3a414b}}"
)

Anchor = Literal["start", "middle", "end"]


def text(x: float, y: float, words: str, kind: str = "", anchor: Anchor = "middle") -> str:
    """A line of text."""
    classes = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{classes}>{escape(words)}</text>'


def box(
    x: float,
    y: float,
    width: float,
    height: float,
    *,
    fill: str | None = None,
    kind: str = "",
    opacity: float = 1,
    dashed: bool = False,
    radius: float = 3,
) -> str:
    """A rectangle, filled with a colour or drawn as its class says."""
    parts = [
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}"',
        f'class="{kind}"' if kind else "",
        f'fill="{fill}"' if fill else 'fill="none"' if kind != "card" else "",
        f'fill-opacity="{opacity:g}"' if opacity < 1 else "",
        'stroke-dasharray="4 3"' if dashed else "",
    ]
    return " ".join(filter(None, parts)) + "/>"


def line(path: str, kind: str = "line", width: float = 2, *, dashed: bool = False) -> str:
    """A line along a path."""
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<path d="{path}" class="{kind}" fill="none" stroke-width="{width:g}" '
        f'stroke-linecap="round" stroke-linejoin="round"{dash}/>'
    )


def arrow(x: float, y: float, to_x: float, to_y: float, width: float = 2.5) -> str:
    """A straight arrow, to the right or downwards."""
    head = "m-8 -6 l8 6 l-8 6" if to_y == y else "m-6 -8 l6 8 l6 -8"
    return line(f"M{x:g} {y:g} L{to_x:g} {to_y:g} {head}", width=width)


def picture(width: float, height: float, says: str, parts: Iterable[str]) -> str:
    """The file; ``says`` is read to people who cannot see it."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img" aria-label="{escape(says)}">\n'
        f"<style>{STYLE}</style>\n{body}\n</svg>\n"
    )
