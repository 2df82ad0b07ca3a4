"""The public functions that plan a conversion, carry it out, and remove what an interrupted one left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Unpack

from reshard.arguments import path_of
from reshard.conversion.options import Target
from reshard.engine.limits import limits_of
from reshard.signatures import takes_options

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from reshard.arguments import Path
    from reshard.conversion.options import ConvertOptions
    from reshard.conversion.plan import ConversionPlan, MultiConversionPlan
    from reshard.conversion.report import ConversionReport, MultiReport
    from reshard.engine.limits import Limits
    from reshard.engine.progress import Progress
    from reshard.formats.choose import Step
    from reshard.storage.leftovers import Leftovers


@takes_options(Target)
def plan(
    source: Path,
    target: Path | None = None,
    *,
    step: Step | None = None,
    item: str | None = None,
    max_memory: int | str | None = None,
    workers: int | None = None,
    **options: Unpack[ConvertOptions],
) -> ConversionPlan:
    """What ``convert`` with the same arguments would do, and what it would cost; moves nothing.

    Args:
        target: where the target would go; None leaves out what depends on it: its free space, and whether
            something is there already.
        step, item: which step of a run, and which item of several; as for ``inspect``.
        max_memory: bytes, or text such as ``"512MiB"``, of all buffers together; the default is a quarter of the
            memory that the machine or its cgroup allows, or 1 GiB, the smaller.
        workers: tasks at once; the default is the number of processors, at least 2 and at most 16.
        options: layout, mesh, select, cast and so on; ``reshard.ConvertOptions`` documents them.
    """
    from reshard.conversion.check_target import check_target
    from reshard.conversion.prepare import plan_all, plan_without_target
    from reshard.formats.choose import choose_checkpoint

    limits = limits_of(max_memory, workers, source, target)
    checked = check_target(Target("" if target is None else target, **options), limits)
    chosen = choose_checkpoint(source, step, item, "source")
    if target is None:
        return plan_without_target(chosen, checked.options)
    return plan_all(chosen, [checked]).plans[0]


def plan_all(
    source: Path,
    targets: Sequence[Target],
    *,
    step: Step | None = None,
    item: str | None = None,
    max_memory: int | str | None = None,
    workers: int | None = None,
) -> MultiConversionPlan:
    """What ``convert_all`` with the same arguments would do, and what it would cost; moves nothing.

    ``total`` of what is returned tells which tensors are read once for which targets, and, as
    ``repeated_bytes``, how much is read again because the budget allows no other way.
    """
    from reshard.conversion.check_target import check_targets
    from reshard.conversion.prepare import plan_all
    from reshard.formats.choose import choose_checkpoint

    checked = check_targets(targets, limits_of(max_memory, workers, source, *_places(targets)))
    return plan_all(choose_checkpoint(source, step, item, "source"), checked)


@takes_options(Target)
def check_arguments(
    *,
    max_memory: int | str | None = None,
    workers: int | None = None,
    **options: Unpack[ConvertOptions],
) -> Limits:
    """Raises what ``plan`` would raise for these arguments with any checkpoint; reads none.

    Arguments as for ``plan``. Returns the bytes and the workers that they stand for.
    """
    from reshard.conversion.check_target import check_target
    from reshard.planning.rules import check_rules

    limits = limits_of(max_memory, workers)
    check_rules(check_target(Target("", **options), limits).options.changes)
    return limits


@takes_options(Target)
def convert(
    source: Path,
    target: Path,
    *,
    step: Step | None = None,
    item: str | None = None,
    max_memory: int | str | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
    before_publish: Callable[[str], None] | None = None,
    **options: Unpack[ConvertOptions],
) -> ConversionReport:
    """Converts the checkpoint ``source`` to ``target``, which appears whole or not at all.

    An interrupted run resumes where it stopped when the same call is made again. Where ``target`` is the finished
    result already, nothing is touched; the report says so, and tells what ``target`` records of itself.

    Args:
        step, item, max_memory, workers: as for ``plan``.
        executor: where tasks run; None makes threads, for a large conversion with more than four workers in processes
            of their own, which import nothing of the caller's program.
        progress: called from this thread after each task.
        before_publish: called with the target's path once it is proven and on the disk, right before it
            appears; where it raises, the target stays unpublished and the same call resumes there.
        options: layout, mesh, select, cast, check and so on; ``reshard.ConvertOptions`` documents them.

    Raises ResumeError where an unfinished run to ``target`` was another conversion, or of a source that
    changed since; SourceChangedError where the source changed while it was read.

    >>> convert("ckpt/100", "served", layout="serving.yaml", cast={"float": "bfloat16"})  # doctest: +SKIP
    """
    from reshard.conversion.check_target import check_target
    from reshard.conversion.convert import convert_all
    from reshard.formats.choose import choose_checkpoint

    checked = check_target(
        Target(target, **options), limits_of(max_memory, workers, source, target)
    )
    chosen = choose_checkpoint(source, step, item, "source")
    return convert_all(chosen, [checked], executor, progress, before_publish).reports[0]


def convert_all(
    source: Path,
    targets: Sequence[Target],
    *,
    step: Step | None = None,
    item: str | None = None,
    max_memory: int | str | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
    before_publish: Callable[[str], None] | None = None,
) -> MultiReport:
    """Converts the checkpoint ``source`` to several targets in one run, which reads it once where memory allows.

    Each target becomes what ``convert`` alone would have made of it, whole or not at all. They appear
    one after the other at the end: no file system can rename several folders in one step, so that a
    run which is killed right then leaves some published and some unfinished. The same call
    resumes those, and leaves the published ones alone.

    Args:
        targets: the targets, none of which may be, or lie in, another or the source.
        step, item: which step of a run, and which item of several; as for ``inspect``.
        max_memory: of the whole run, all targets together.
        workers, executor: as for ``convert``.
        progress: told of all targets together.
        before_publish: called for each target; as for ``convert``.

    Raises what ``convert`` raises; an error that is about one target names it, also as its ``target``.

    >>> convert_all("ckpt/100", [Target("a"), Target("b", mesh="model=8")])  # doctest: +SKIP
    """
    from reshard.conversion.check_target import check_targets
    from reshard.conversion.convert import convert_all
    from reshard.formats.choose import choose_checkpoint

    checked = check_targets(targets, limits_of(max_memory, workers, source, *_places(targets)))
    chosen = choose_checkpoint(source, step, item, "source")
    return convert_all(chosen, checked, executor, progress, before_publish)


def clean(target: Path, *, dry_run: bool = False, state: str | None = None) -> Leftovers:
    """Removes what an interrupted run left of a target, on a disk or in a bucket; a finished target is not touched.

    Args:
        target: the path or URL that was the target of the run.
        dry_run: only count what would be removed.
        state: as it was given to the run.

    Raises MissingError where nothing is left, TargetBusyError where a run is writing the target now, StorageError where
    something cannot be removed.
    """
    from reshard.storage.leftovers import remove_leftovers

    return remove_leftovers(path_of("target", target), dry_run=dry_run, state=state)


def _places(targets: object) -> list[object]:
    """The places that targets name, as far as they are targets."""
    return (
        [one.target for one in targets if isinstance(one, Target)]
        if isinstance(targets, Iterable)
        else []
    )
