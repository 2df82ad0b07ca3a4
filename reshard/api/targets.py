"""The public functions that make a target in parts, remove the leftovers of an interrupted run, and test a bucket."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

from reshard.arguments import path_of, takes_options
from reshard.conversion.options import Target
from reshard.engine.limits import limits_of

if TYPE_CHECKING:
    from reshard.arguments import Path, Unlisted
    from reshard.conversion.options import ConvertOptions
    from reshard.conversion.report import ConversionReport, PartReport
    from reshard.engine.progress import Progress
    from reshard.formats.choose import Step
    from reshard.storage.buckets.doctor import BucketReport
    from reshard.storage.leftovers import Leftovers


@takes_options(Target)
def convert_part(
    source: Path,
    target: Path,
    *,
    part: str,
    step: Step | None = None,
    item: str | None = None,
    unlisted: Unlisted = "leave",
    max_memory: int | str | None = None,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    **options: Unpack[ConvertOptions],
) -> PartReport:
    """Does one part of a conversion, while other hosts do the others; ``commit`` then makes the target appear.

    Every part takes the same arguments, ``max_memory`` and ``workers`` among them, and writes to one target that all hosts see.
    The same call resumes a part that was interrupted.

    Args:
        part: the part and the number of parts, such as ``"3/16"``; the first is ``"1/16"``.
        step, item, unlisted, max_memory, workers, progress, options: as for ``convert``. The layout must be one that a layout file
            can express.

    Raises PlanError for a part that does not exist, ResumeError if other parts of the target are of another source, or have
    other options; else the errors of ``convert``.

    >>> convert_part("ckpt/100", "served", part="1/2", layout="serving.yaml")  # doctest: +SKIP
    """
    from reshard.conversion.check_target import check_target
    from reshard.conversion.conversion_key import as_layout_file, plain_options
    from reshard.conversion.parts import convert_one_part
    from reshard.formats.choose import choose_checkpoint
    from reshard.storage.parts import parse_part

    which = parse_part(part)
    asked = as_layout_file(Target(target, **options))
    checked = check_target(asked, limits_of(max_memory, workers, source, target))
    plain = plain_options(asked, checked)
    chosen = choose_checkpoint(source, step, item, "source", unlisted)
    return convert_one_part(chosen, checked, which, plain, progress)


def commit(
    target: Path,
    *,
    state: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> ConversionReport:
    """Makes the target of ``convert_part`` appear, once all parts are done.

    It checks that every unit of work was done once, proves all tensors as ``convert`` does, and publishes. The same call
    resumes an interrupted one.

    Args:
        target: the path or URL that was the target of the parts.
        state: the option ``state`` of the parts.
        progress: as for ``convert``.

    Raises MissingError if no part was begun, StorageError naming the parts that are missing or not finished,
    TargetBusyError if one is at work; else the errors of ``convert``.
    """
    from reshard.conversion.parts import commit_parts

    return commit_parts(path_of("target", target), state, progress)


def clean(target: Path, *, dry_run: bool = False, state: str | None = None) -> Leftovers:
    """Removes the leftovers of an interrupted run to a target, on a disk or in a bucket. A finished target is not touched.

    Args:
        target: the path or URL that was the target of the run.
        dry_run: only count the leftovers.
        state: the option ``state`` of that run.

    Raises MissingError if nothing is left, TargetBusyError if a run is writing the target now, StorageError if something
    cannot be removed.
    """
    from reshard.storage.leftovers import remove_leftovers

    return remove_leftovers(path_of("target", target), dry_run=dry_run, state=state)


def doctor(url: Path) -> BucketReport:
    """Tests a bucket for everything that reshard needs, and measures its latency and bandwidth.

    Writes some 50 MiB below a folder with a random name, reads them again and removes them.

    Args:
        url: a folder in a bucket, which need not exist: ``gs://…``, ``s3://…`` or ``az://…``.

    Raises StorageError for a URL that names no bucket, and if the bucket cannot be written to at all.
    """
    from reshard.storage.buckets.doctor import examine_bucket

    return examine_bucket(path_of("bucket", url))
