"""``reshard commit``, ``doctor`` and ``clean``."""

from __future__ import annotations

from typing import Annotated

import typer

import reshard
from reshard.cli.console import print_all, print_answer
from reshard.cli.failures import FAILED
from reshard.cli.groups import Output
from reshard.cli.options import Json, Misuse, Quiet, examples, usage
from reshard.cli.target_options import declared

COMMIT_EXAMPLES = examples(
    "reshard convert ckpt/1000 served --layout serving.yaml --part 1/2",
    "reshard convert ckpt/1000 served --layout serving.yaml --part 2/2",
    "reshard commit served",
)

PartsTarget = Annotated[
    str,
    typer.Argument(metavar="DST", help="The target of the parts, a path or a URL of a bucket."),
]


def commit(
    target: PartsTarget,
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


DOCTOR_EXAMPLES = examples(
    "reshard doctor gs://bucket/checkpoints",
    "AWS_ENDPOINT_URL=https://minio.example reshard doctor s3://bucket",
    "reshard doctor s3://bucket/run --json",
)

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="A folder in a bucket: gs://…, s3://… or az://…. It need not exist."
    ),
]


def doctor(url: Url, as_json: Json = False) -> None:
    """Test whether a bucket can do what reshard needs.

    Writes some 50 MiB in a folder with a random name, reads them again and removes them. Tests ranges, reads of a version,
    conditional writes, listing right after writing, uploads in parts, checksums and deletion, and measures latency and
    bandwidth.

    Exit code 1 if something does not hold; the table says what that means.
    """
    from reshard.storage.buckets.doctor import check_url

    with usage():
        check_url(url)
    found = reshard.doctor(url)
    if as_json:
        print_answer("doctor", found)
    else:
        from reshard.cli.views.targets import doctor_view

        print_all(doctor_view(found))
    if not found.is_fine:
        raise typer.Exit(FAILED)


CLEAN_EXAMPLES = examples(
    "reshard clean ckpt/served",
    "reshard clean gs://bucket/run/1000 --dry-run",
    "reshard clean published --versions 3",
)

LeftTarget = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="The target of the run, a path or a URL of a bucket; with --versions a folder of versions.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")
]


Versions = Annotated[
    int | None,
    typer.Option(
        "--versions",
        metavar="KEEP",
        help="Remove the versions of weights in TARGET that the newest KEEP do not need.",
    ),
]


def clean(
    target: LeftTarget,
    versions: Versions = None,
    dry_run: DryRun = False,
    state: Annotated[str | None, declared("state")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Remove what an interrupted run to a target left.

    An interrupted conversion keeps what it did, so that the same command resumes it. If you do not want to resume it, this
    removes what it kept: the folder beside the target and, in a bucket, the objects of the unfinished target. A finished target
    is not touched. A target that a run is writing now is refused.

    With --versions TARGET is a folder of versions such as weight_v000007. The newest KEEP stay, with all that they stand on, back to a full
    version. What is later than the newest whole version stays too. The latest is removed first, so that no delta is ever without its base.

    On S3 it also aborts unfinished uploads in parts. In other clouds a lifecycle rule of the bucket has to remove them.
    """
    if versions is not None:
        _clean_versions(target, versions, dry_run, state, quiet, as_json)
        return
    found = reshard.clean(target, dry_run=dry_run, state=state)
    if Output(quiet=quiet, as_json=as_json).is_told("clean", found):
        return
    from reshard.cli.views.targets import clean_view

    print_all(clean_view(found))


def _clean_versions(
    folder: str, keep: int, dry_run: bool, state: str | None, quiet: bool, as_json: bool
) -> None:
    if state is not None:
        raise Misuse(
            "--state is of the run to one target, but --versions looks through a folder; leave one of them out"
        )
    found = reshard.clean_versions(folder, keep, dry_run=dry_run)
    if as_json:
        print_answer("clean", found, nbytes=found.nbytes)
    elif not quiet:
        from reshard.cli.views.inspection import cleaned_view

        print_all(cleaned_view(found))
