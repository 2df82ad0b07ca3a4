"""``reshard commit``, ``part``, ``doctor`` and ``clean``."""

from __future__ import annotations

import os
from itertools import chain
from typing import Annotated

import typer

import reshard
from reshard.cli.console import print_answer, show_view
from reshard.cli.failures import FAILED
from reshard.cli.groups import Output
from reshard.cli.options import Count, Misuse, usage
from reshard.cli.target_options import declared


def commit(
    target: str, *, state: Annotated[str | None, declared("state")] = None, output: Output
) -> None:
    """Make a checkpoint of the parts that convert --part has done.

    Checks that every unit of work was done once, compares the digests of what was read and written for every tensor, as convert does,
    and publishes DST. Parts that are missing or not finished are named, and nothing is published. An interrupted
    commit resumes when the same command is run again.

    Options:
        DST: The target of the parts, a path or a URL of a bucket.

    Examples:
        $ reshard convert ckpt/1000 served --layout serving.yaml --part 1/2
        $ reshard convert ckpt/1000 served --layout serving.yaml --part 2/2
        $ reshard commit served
    """
    with output.watching() as progress:
        made = reshard.commit_all(target, state=state, progress=progress)
    warnings = chain.from_iterable(report.warnings for report in made.reports)
    is_one = len(made.reports) == 1
    if not output.is_told("commit", made.reports[0] if is_one else made, warnings):
        show_view("report.reports_view", made, output.show_all)


def part(
    target: str,
    part: str | None = None,
    *,
    of: Count = None,
    state: Annotated[str | None, declared("state")] = None,
    output: Output,
) -> None:
    """Do one part of a conversion that was begun, as its record beside DST says.

    A service or an engine begins the conversion and gives each process only DST and the number of a part; convert --part begins and does parts
    by itself. The same command resumes a part that was interrupted. Then commit makes a checkpoint of all parts.

    Options:
        DST: The target of the parts, a path or a URL of a bucket.
        [PART]: The part and their number, such as 3/16. Left out with --of.
        --of N: Do the part of N that the variable JOB_COMPLETION_INDEX names, which Kubernetes counts from 0 in each pod of an Indexed Job.

    Examples:
        $ reshard convert ckpt/1000 served --layout serving.yaml --part 1/2
        $ reshard part served 2/2
        $ JOB_COMPLETION_INDEX=1 reshard part served --of 2
    """
    with usage():
        named = _part_of(part, of)
    with output.watching() as progress:
        report = reshard.join_part(target, named, state=state, progress=progress)
    output.tell("convert", report, "report.part_view")


def _part_of(part: str | None, of: int | None) -> str:
    """The part that the words of a command name."""
    from reshard.storage.parts import parse_part

    if (part is None) == (of is None):
        raise Misuse("give the part, such as 3/16, or --of N in a pod of an Indexed Job")
    if part is None:
        index = os.environ.get("JOB_COMPLETION_INDEX", "")
        if not index.isdecimal():
            raise Misuse(
                f"--of takes the part from the variable JOB_COMPLETION_INDEX, which is {index!r}; expected a number from 0, as Kubernetes sets it"
            )
        part = f"{int(index) + 1}/{of}"
    return str(parse_part(part))


def doctor(url: str, *, as_json: bool = False) -> None:
    """Test whether a bucket can do what reshard needs.

    Writes some 50 MiB in a folder with a random name, reads them again and removes them. Tests ranges, reads of a version,
    conditional writes, listing right after writing, uploads in parts, checksums and deletion, and measures latency and
    bandwidth.

    Exit code 1 if something does not hold; the table says what that means.

    Options:
        URL: A folder in a bucket: gs://…, s3://… or az://…. It need not exist.

    Examples:
        $ reshard doctor gs://bucket/checkpoints
        $ AWS_ENDPOINT_URL=https://minio.example reshard doctor s3://bucket
        $ reshard doctor s3://bucket/run --json
    """
    from reshard.storage.buckets.doctor import check_url

    with usage():
        check_url(url)
    found = reshard.doctor(url)
    Output(as_json=as_json).tell("doctor", found, "targets.doctor_view")
    if not found.is_fine:
        raise typer.Exit(FAILED)


def clean(
    target: str,
    *,
    versions: int | None = None,
    dry_run: bool = False,
    state: Annotated[str | None, declared("state")] = None,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Remove what an interrupted run to a target left.

    An interrupted conversion keeps what it did, so that the same command resumes it. If you do not want to resume it, this
    removes what it kept: the folder beside the target and, in a bucket, the objects of the unfinished target. A finished target
    is not touched. A target that a run is writing now is refused.

    With --versions TARGET is a folder of versions such as weight_v000007. The newest KEEP stay, with all that they stand on, back to a full
    version. What is later than the newest whole version stays too. The latest is removed first, so that no delta is ever without its base.

    On S3 it also aborts unfinished uploads in parts. In other clouds a lifecycle rule of the bucket has to remove them.

    Options:
        TARGET: The target of the run, a path or a URL of a bucket; with --versions a folder of versions.
        --versions KEEP: Remove the versions of weights in TARGET that the newest KEEP do not need.
        --dry-run: Show what would be removed, and remove nothing.

    Examples:
        $ reshard clean ckpt/served
        $ reshard clean gs://bucket/run/1000 --dry-run
        $ reshard clean published --versions 3
    """
    if versions is None:
        left = reshard.clean(target, dry_run=dry_run, state=state)
        Output(quiet=quiet, as_json=as_json).tell("clean", left, "targets.clean_view")
        return
    if state is not None:
        raise Misuse(
            "--state is of the run to one target, but --versions looks through a folder; leave one of them out"
        )
    found = reshard.clean_versions(target, versions, dry_run=dry_run)
    if as_json:
        print_answer("clean", found, nbytes=found.nbytes)
    elif not quiet:
        show_view("inspection.cleaned_view", found)
