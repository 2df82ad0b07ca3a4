"""``reshard clean``."""

from __future__ import annotations

from typing import Annotated

import typer

import reshard
from reshard.cli.options import Json, Quiet, examples
from reshard.cli.target_options import declared

EXAMPLES = examples(
    "reshard clean ckpt/served",
    "reshard clean gs://bucket/run/1000 --dry-run",
)

Target = Annotated[
    str,
    typer.Argument(metavar="TARGET", help="The target of the run, a path or a URL of a bucket."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")
]


def clean(
    target: Target,
    dry_run: DryRun = False,
    state: Annotated[str | None, declared("state")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Remove what an interrupted run to a target left.

    An interrupted conversion keeps what it did, so that the same command resumes it. If you do not want to resume it, this
    removes what it kept: the folder beside the target and, in a bucket, the objects of the unfinished target. A finished target
    is not touched. A target that a run is writing now is refused.

    On S3 it also aborts unfinished uploads in parts. In other clouds a lifecycle rule of the bucket has to remove them.
    """
    found = reshard.clean(target, dry_run=dry_run, state=state)
    if as_json:
        from reshard.cli.console import print_json
        from reshard.surface.answers import clean as document

        print_json(document(found))
        return
    if quiet:
        return
    from reshard.cli.console import print_all
    from reshard.cli.views.targets import clean_view

    print_all(clean_view(found))
