"""``reshard diff``."""

from __future__ import annotations

from typing import Annotated

import typer

import reshard
from reshard.cli.failures import DIFFERENT
from reshard.cli.options import (
    Item,
    Json,
    MaxMemory,
    Quiet,
    ShowAll,
    Step,
    Unlisted,
    Workers,
    examples,
    source_of,
    usage,
)

EXAMPLES = examples(
    "reshard diff ckpt/1000 served",
    "reshard diff ckpt/1000 ckpt/2000 --select '^params/'",
    "reshard diff ckpt ckpt/2000 --step latest --drop '^opt_state/' --all",
)

A = Annotated[
    str,
    typer.Argument(
        metavar="A", help="The checkpoint to start from; with --step, the folder of a training run."
    ),
]
B = Annotated[
    str, typer.Argument(metavar="B", help="The other checkpoint, on any mesh and in any chunks.")
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RE",
        help="Compare only leaves whose name this regular expression finds; may be repeated. "
        "Default: all.",
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RE",
        help="Leave out leaves whose name this finds, after --select; may be repeated.",
    ),
]


def diff(
    a: A,
    b: B,
    step: Step = None,
    item: Item = None,
    unlisted: Unlisted = "leave",
    select: Select = None,
    drop: Drop = None,
    max_memory: MaxMemory = None,
    workers: Workers = None,
    show_all: ShowAll = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show which tensors of two checkpoints differ, and by how much.

    Reads both once, element by element. For each tensor that differs: how many elements do, the
    largest difference |a - b|, and the relative norm ‖a - b‖ / ‖a‖. Tensors that one checkpoint lacks, differences of
    shape and dtype, and leaves that are not tensors are listed too. Tensors of different dtypes are compared by value,
    without loss. --step and --item choose a part of A;
    --unlisted is for both.

    Exit code 0 if everything is equal bit for bit, 3 if something differs.
    """
    from reshard.cli.console import print_answer
    from reshard.cli.progress import watching

    with usage():
        reshard.check_arguments(select=select or (), drop=drop or ())
    a = source_of(a, step, item)
    with watching(as_json or quiet) as progress:
        found = reshard.diff(
            a,
            b,
            unlisted=unlisted,
            select=select or (),
            drop=drop or (),
            max_memory=max_memory,
            workers=workers,
            progress=progress,
        )
    if as_json:
        print_answer("diff", found)
    elif not quiet:
        from reshard.cli.console import print_all
        from reshard.cli.tables import most_rows
        from reshard.cli.views.diff import diff_view

        print_all(diff_view(found, show_all, most_rows()))
    if found.differences:
        raise typer.Exit(DIFFERENT)
