"""``reshard diff``."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from msgspec.structs import asdict

import reshard
from reshard.cli.console import print_all
from reshard.cli.failures import DIFFERENT
from reshard.cli.groups import Chosen, Output, Resources
from reshard.cli.options import examples, usage

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
    *,
    chosen: Chosen,
    select: Select = None,
    drop: Drop = None,
    resources: Resources,
    output: Output,
) -> None:
    """Show which tensors of two checkpoints differ, and by how much.

    Reads both once, element by element. For each tensor that differs: how many elements do, the
    largest difference |a - b|, and the relative norm ‖a - b‖ / ‖a‖. Tensors that one checkpoint lacks, differences of
    shape and dtype, and leaves that are not tensors are listed too. Tensors of different dtypes are compared by value,
    without loss. --step and --item choose a part of A;
    --unlisted is for both.

    Exit code 0 if everything is equal bit for bit, 3 if something differs.
    """
    changes: dict[str, Any] = {"select": select or (), "drop": drop or ()}
    with usage():
        reshard.check_arguments(**changes)
    a = chosen.of(a)
    with output.watching() as progress:
        found = reshard.diff(
            a,
            b,
            unlisted=chosen.unlisted,
            **changes,
            **asdict(resources),
            progress=progress,
        )
    if not output.is_told("diff", found):
        from reshard.cli.tables import most_rows
        from reshard.cli.views.diff import diff_view

        print_all(diff_view(found, output.show_all, most_rows()))
    if found.differences:
        raise typer.Exit(DIFFERENT)
