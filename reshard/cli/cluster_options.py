"""``--ray`` and ``--part``: one conversion on many hosts. ``--ray`` may stand without a value, which typer does not support."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Annotated

import typer

from reshard.cli.options import RESOURCES

if TYPE_CHECKING:
    from concurrent.futures import Executor

Ray = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS]",
        help="Let every host of this Ray cluster work, such as 10.0.0.1:6379; --max-memory and --workers are then those of each "
        "host, and SRC and DST must be seen by all. Without ADDRESS: the cluster of this host, or of the variable RAY_ADDRESS.",
        rich_help_panel=RESOURCES,
    ),
]


Part = Annotated[
    str | None,
    typer.Option(
        metavar="I/N",
        help="Do part I of N of this conversion, such as 3/16, on a host of its own; reshard commit DST makes the target appear when "
        "all parts are done. Every part takes the same options, --max-memory and --workers among them.",
        rich_help_panel=RESOURCES,
    ),
]


@contextmanager
def ray_cluster(address: str | None) -> Iterator[dict[str, Executor]]:
    """The executor of a cluster for the block, as ``reshard.convert`` takes it; nothing where none was asked for."""
    if address is None:
        yield {}
        return
    from reshard.executors.ray import RayExecutor

    # Ray tells of lost workers on stdout, which is for the answer.
    with redirect_stdout(sys.stderr), RayExecutor(address) as executor:
        yield {"executor": executor}


_ADDRESS = re.compile(r"auto|[^/:\s]+:[0-9]+|\[[0-9a-fA-F:]+\]:[0-9]+", re.ASCII)

DEFAULTS = {"--ray": "auto"}
"""Options that may stand without a value, and the value that they have then."""


def completed(args: Sequence[str]) -> list[str]:
    """The words of a command line, with the value of each option that stands without one.

    A word after ``--ray`` is its value only if it is an address.

    >>> completed(["convert", "--ray", "src", "dst"])
    ['convert', '--ray', 'auto', 'src', 'dst']
    >>> completed(["convert", "src", "dst", "--ray", "10.0.0.1:6379"])
    ['convert', 'src', 'dst', '--ray', '10.0.0.1:6379']
    """
    found: list[str] = []
    for word, after in zip(args, (*args, "")[1:], strict=True):
        found.append(word)
        if word in DEFAULTS and not _ADDRESS.fullmatch(after):
            found.append(DEFAULTS[word])
    return found
