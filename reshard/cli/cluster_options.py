"""``--ray`` and ``--part``: one conversion on many hosts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
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
