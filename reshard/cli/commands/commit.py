"""``reshard commit``."""

from __future__ import annotations

from typing import Annotated

import typer

import reshard
from reshard.cli.options import Json, Quiet, ShowAll, examples
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
    show_all: ShowAll = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Make a checkpoint of the parts that convert --part has done.

    Checks that every unit of work was done once, compares the digests of what was read and written for every tensor, as convert does,
    and publishes DST. Parts that are missing or not finished are named, and nothing is published. An interrupted
    commit resumes when the same command is run again.
    """
    from reshard.cli.console import print_answer, warn
    from reshard.cli.progress import watching

    with watching(as_json or quiet) as progress:
        report = reshard.commit(target, state=state, progress=progress)
    if as_json:
        print_answer("commit", report)
        return
    if quiet:
        warn(report.warnings)
        return
    from reshard.cli.console import print_all
    from reshard.cli.views.report import report_view

    print_all(report_view(report, show_all, set()))
