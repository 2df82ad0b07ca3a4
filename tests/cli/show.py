"""What a person sees: views printed to text of a given width."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO

from rich.console import Console, RenderableType

from reshard.cli.console import show as show_one


def console(width: int = 120, colours: bool = False) -> Console:
    """A console that keeps what is printed."""
    return Console(
        file=StringIO(),
        width=width,
        force_terminal=colours,
        color_system="256" if colours else None,
        markup=False,
        highlight=False,
        emoji=False,
    )


def text_of(console: Console) -> str:
    """Everything printed so far."""
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def show(views: Iterable[RenderableType], width: int = 120) -> str:
    """The views as text."""
    target = console(width)
    for view in views:
        show_one(target, view)
    return text_of(target)


def lines(views: Iterable[RenderableType], width: int = 120) -> list[str]:
    """The same line by line, runs of spaces made one."""
    return [" ".join(line.split()) for line in show(views, width).splitlines() if line.strip()]
