"""``reshard clean``."""

from __future__ import annotations

from typing import Annotated

import typer

import reshard
from reshard.cli.options import Json, examples
from reshard.cli.target_options import State

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
    target: Target, dry_run: DryRun = False, state: State = None, as_json: Json = False
) -> None:
    """Remove what an interrupted run left of a target.

    An interrupted conversion keeps what it did, so that the same command resumes it. Where nobody will, this removes it: the
    folder beside the target and, in a bucket, the objects of the unfinished target. A finished target is not touched, and one
    that a run is writing now is refused.

    Parts of uploads that were cut off are removed by the bucket itself, by a lifecycle rule.
    """
    found = reshard.clean(target, dry_run=dry_run, state=state)
    if as_json:
        from reshard.cli.json_output import clean as document
        from reshard.cli.json_output import print_json

        print_json(document(found))
        return
    from reshard.cli.console import print_all
    from reshard.cli.views.clean import clean_view

    print_all(clean_view(found))
