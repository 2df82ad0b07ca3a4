"""``reshard commit``."""

from __future__ import annotations

from typing import Annotated

import typer

import reshard
from reshard.cli.console import print_all
from reshard.cli.groups import Output
from reshard.cli.options import examples
from reshard.cli.target_options import declared

EXAMPLES = examples(
    "reshard convert ckpt/1000 served --layout serving.yaml --part 1/2",
    "reshard convert ckpt/1000 served --layout serving.yaml --part 2/2",
    "reshard commit served",
)

Target = Annotated[
    str,
    typer.Argument(metavar="DST", help="The target of the parts, a path or a URL of a bucket."),
]


def commit(
    target: Target,
    state: Annotated[str | None, declared("state")] = None,
    *,
    output: Output,
) -> None:
    """Make a checkpoint of the parts that convert --part has done.

    Checks that every unit of work was done once, compares the digests of what was read and written for every tensor, as convert does,
    and publishes DST. Parts that are missing or not finished are named, and nothing is published. An interrupted
    commit resumes when the same command is run again.
    """
    with output.watching() as progress:
        report = reshard.commit(target, state=state, progress=progress)
    if output.is_told("commit", report, report.warnings):
        return
    from reshard.cli.views.report import report_view

    print_all(report_view(report, output.show_all, set()))
