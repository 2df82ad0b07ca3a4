"""The public functions that look after targets: remove what an interrupted run left, and test a bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reshard.arguments import path_of

if TYPE_CHECKING:
    from reshard.arguments import Path
    from reshard.storage.buckets.doctor import BucketReport
    from reshard.storage.leftovers import Leftovers


def clean(target: Path, *, dry_run: bool = False, state: str | None = None) -> Leftovers:
    """Removes what an interrupted run to a target left, on a disk or in a bucket. A finished target is not touched.

    Args:
        target: the path or URL that was the target of the run.
        dry_run: only count what would be removed.
        state: the option ``state`` of that run.

    Raises MissingError if nothing is left, TargetBusyError if a run is writing the target now, StorageError if something
    cannot be removed.
    """
    from reshard.storage.leftovers import remove_leftovers

    return remove_leftovers(path_of("target", target), dry_run=dry_run, state=state)


def doctor(url: Path) -> BucketReport:
    """Tests whether a bucket can do what reshard needs, and measures its latency and bandwidth.

    Writes some 50 MiB below a folder with a random name, reads them again and removes them.

    Args:
        url: a folder in a bucket, which need not exist: ``gs://…``, ``s3://…`` or ``az://…``.

    Raises StorageError for a URL that names no bucket, and if the bucket cannot be written to at all.
    """
    from reshard.storage.buckets.doctor import examine_bucket

    return examine_bucket(path_of("bucket", url))
