"""``reshard steps``."""

from __future__ import annotations

from typing import Annotated

import typer

import reshard
from reshard.cli.console import print_all, print_answer
from reshard.cli.options import Json, examples

EXAMPLES = examples("reshard steps ckpt", "reshard steps ckpt --json | jq '.steps[-1].path'")

Run = Annotated[
    str, typer.Argument(metavar="RUN", help="The folder of a training run, a path or a URL.")
]
ShowAll = Annotated[
    bool, typer.Option("--all", help="A row for each step, however many there are.")
]


def steps(run: Run, show_all: ShowAll = False, as_json: Json = False) -> None:
    """List the steps of a training run: which are finished, how large they are, and when they were written.

    Only finished steps are read by other commands; --step latest is the last of them. A step that is not finished is being
    saved now, or its save was interrupted.
    """
    found = reshard.inspect_run(run)
    if as_json:
        print_answer("steps", uri=run, steps=found)
        return
    from reshard.cli.tables import most_rows
    from reshard.cli.views.inspection import steps_view

    print_all(steps_view(run, found, show_all, most_rows()))
