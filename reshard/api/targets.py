"""The public functions that make a target in parts, remove the leftovers of an interrupted run, and test a bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Unpack

from reshard.api.sources import source_of
from reshard.arguments import check_positive, path_of, takes_options
from reshard.conversion.options import Target
from reshard.engine.limits import limits_of

if TYPE_CHECKING:
    from reshard.arguments import Dequantized, Path, Unlisted
    from reshard.conversion.options import ConvertOptions
    from reshard.conversion.report import BegunParts, ConversionReport, MultiReport, PartReport
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
    dequantize: Dequantized | None = None,
    lora: Sequence[Path] | None = None,
    quantize_like: Path | None = None,
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
        step, item, unlisted, dequantize, lora, quantize_like, max_memory, workers, progress, options: as for ``convert``. The layout must
            be one that a layout file can express.

    Raises PlanError for a part that does not exist, ResumeError if other parts of the target are of another source, or have
    other options; else the errors of ``convert``.

    >>> convert_part("ckpt/100", "served", part="1/2", layout="serving.yaml")  # doctest: +SKIP
    """
    from reshard.conversion.conversion_key import plainly
    from reshard.conversion.parts.part import convert_one_part
    from reshard.storage.parts import parse_part

    which = parse_part(part)
    limits = limits_of(max_memory, workers, source, target)
    checked, plain = plainly([Target(target, **options)], limits)
    chosen = source_of(source, step, item, unlisted, dequantize, lora, quantize_like)
    return convert_one_part(chosen, checked, which, plain, progress)


def begin_parts(
    source: Path,
    targets: Sequence[Target],
    parts: int | None = None,
    *,
    step: Step | None = None,
    item: str | None = None,
    unlisted: Unlisted = "leave",
    dequantize: Dequantized | None = None,
    lora: Sequence[Path] | None = None,
    quantize_like: Path | None = None,
    max_memory: int | str | None = None,
    workers: int | None = None,
    max_growth: float | None = None,
    hosts: int = 1,
) -> BegunParts:
    """Plans a conversion to one or several targets and records it beside them, so that other processes can do its parts.

    Each part is then done by ``join_part``, which needs nothing but a target and the number of the part; ``commit_all`` makes the targets appear.

    Args:
        parts: their number; with None six for each of ``hosts``, and fewer for a small conversion.
        step, item, unlisted, dequantize, lora, quantize_like, max_memory, workers, max_growth: as for ``convert_all``; memory and workers are
            those of each part.

    Raises PlanError for more parts than units of work, ResumeError if parts of another conversion to a target were begun, and the errors of
    ``plan_all``.

    >>> begun = begin_parts("ckpt/100", [Target("served", layout="serving.yaml")], 8)  # doctest: +SKIP
    """
    from reshard.conversion.conversion_key import plainly
    from reshard.conversion.parts.on_executor import record_parts

    if parts is not None:
        check_positive("parts", parts, "parts that other processes do, such as 16")
    check_positive("hosts", hosts, "hosts that do the parts, such as 16")
    places = [one.target for one in targets]
    limits = limits_of(max_memory, workers, source, *places, max_growth=max_growth)
    checked, plain = plainly(targets, limits)
    chosen = source_of(source, step, item, unlisted, dequantize, lora, quantize_like)
    return record_parts(chosen, checked, plain, parts, hosts)


def join_part(
    target: Path,
    part: str,
    *,
    state: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> PartReport:
    """Does one part of the conversion that ``begin_parts``, or another part, has recorded beside a target.

    The same call resumes a part that was interrupted.

    Args:
        target: the path or URL of a target of that conversion.
        part: the part and the number of parts, such as ``"3/16"``.
        state: the option ``state`` of the target.
        progress: as for ``convert``.

    Raises MissingError if no conversion is recorded there, PlanError for a part that it does not have, TargetBusyError if another process does
    this part; else the errors of ``convert_part``.
    """
    from reshard.conversion.parts.part import do_recorded_part
    from reshard.storage.parts import parse_part

    return do_recorded_part(path_of("target", target), parse_part(part), state, progress)


def commit(
    target: Path,
    *,
    state: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> ConversionReport:
    """Makes the target of parts appear, once all of them are done; if they have several targets, all of these appear.

    It checks that every unit of work was done once, proves all tensors as ``convert`` does, and publishes. The same call
    resumes an interrupted one.

    Args:
        target: the path or URL that was the target of the parts.
        state: the option ``state`` of the parts.
        progress: as for ``convert``.

    Returns the report of ``target``; ``commit_all`` returns those of all targets.

    Raises MissingError if no part was begun, StorageError naming the parts that are missing or not finished,
    TargetBusyError if one is at work; else the errors of ``convert``.
    """
    made = commit_all(target, state=state, progress=progress)
    named = path_of("target", target)
    return next(report for report in made.reports if report.target == named)


def commit_all(
    target: Path,
    *,
    state: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    before_publish: Callable[[str], None] | None = None,
) -> MultiReport:
    """Makes all targets of parts appear, of which ``target`` is one; arguments and errors as of ``commit``.

    Args:
        before_publish: called with each target's path when it is complete, right before it appears; as for ``convert``.
    """
    from reshard.conversion.parts.commit import commit_parts

    return commit_parts(path_of("target", target), state, progress, before_publish)


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
