"""Where text goes: stdout for answers, stderr for progress and errors."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, RenderableType

PLAIN_COLUMNS = 80
"""Width if the output is not a terminal and COLUMNS is not set."""


def stdout_console() -> Console:
    """The console for answers; as wide as the terminal, or as ``COLUMNS`` says, else 80."""
    return _console(stderr=False)


def stderr_console() -> Console:
    """The console for progress and warnings; a separate stream, so that answers can be piped."""
    return _console(stderr=True)


def say(line: str) -> None:
    """Prints one plain line on stderr; ``rich``, which takes a while to load, is not needed for it."""
    print(line, file=sys.stderr, flush=True)


def print_all(views: Iterable[RenderableType]) -> None:
    """Prints an answer, part by part."""
    console = stdout_console()
    for view in views:
        console.print(view, crop=False)  # rows of ``--all`` are not cut off


def _console(stderr: bool) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    is_sized = stream.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console(
        stderr=stderr,
        width=None if is_sized else PLAIN_COLUMNS,
        markup=False,
        emoji=False,
        highlight=False,
    )
