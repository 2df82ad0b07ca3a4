"""``reshard doctor``."""

from __future__ import annotations

from typing import Annotated

import typer

import reshard
from reshard.cli.console import print_all, print_answer
from reshard.cli.failures import FAILED
from reshard.cli.options import Json, examples, usage

EXAMPLES = examples(
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
