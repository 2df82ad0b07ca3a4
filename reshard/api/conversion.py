"""The public functions that plan a conversion and carry it out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Unpack

from msgspec.structs import replace

from reshard.api.sources import source_of
from reshard.arguments import check_positive, takes_options
from reshard.conversion.options import Target
from reshard.engine.limits import limits_of
from reshard.errors import PlanError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from reshard.arguments import Dequantized, Path, Unlisted
    from reshard.conversion.check_target import CheckedTarget
    from reshard.conversion.options import ConvertOptions
    from reshard.conversion.plan import ConversionPlan, MultiConversionPlan
    from reshard.conversion.report import ConversionReport, MultiReport
    from reshard.engine.limits import Limits
    from reshard.engine.progress import Progress
    from reshard.formats.choose import Step
    from reshard.formats.registry import CheckpointPath


@takes_options(Target)
def plan(
    source: Path,
    target: Path | None = None,
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
    **options: Unpack[ConvertOptions],
) -> ConversionPlan:
    """Plans a ``convert`` with the same arguments, and estimates its cost. No tensor is read.

    Args:
        target: the path of the target. With None, and for one on the hub, the plan has no free space, and does not test whether the
            target exists.
        step, item, unlisted: the step of a run, the item of several, and the treatment of unlisted tensors and files; as for
            ``inspect``.
        dequantize, lora, quantize_like: as for ``convert``.
        max_memory: bytes, or text such as ``"512MiB"``, of all buffers together; the default is 1 GiB, or a quarter of
            the memory of the machine or its cgroup if that is less.
        workers: the number of tasks that run at once; the default is the number of processors, at least 2 and at most 16;
            with buckets it is 16 if the memory allows.
        max_growth: refuses a target above 1 GiB that is more than this many times as large as the source: a map can make a
            large target of a small source. With None there is no limit.
        hosts: the number of hosts that share the work, each with ``max_memory`` and ``workers``. With more than one, each file is
            written by one task, which may need more memory or read chunks again. ``ConversionPlan.time`` estimates their time.
        options: layout, mesh, select, cast and so on; ``reshard.ConvertOptions`` documents them.
    """
    from reshard.conversion.check_target import check_target
    from reshard.conversion.make_plan import plan_conversions, plan_without_target
    from reshard.storage.location import is_in_hub

    check_positive("hosts", hosts, "hosts that share the work, such as 16")
    limits = limits_of(max_memory, workers, source, target, max_growth=max_growth)
    checked = check_target(Target("" if target is None else target, **options), limits)
    chosen = source_of(source, step, item, unlisted, dequantize, lora, quantize_like)
    if is_in_hub(checked.target):  # free space and what is there are not asked for
        target, checked = None, replace(checked, target="", to=checked.to or "safetensors")
    if target is None:
        return plan_without_target(chosen, checked, hosts)
    return plan_conversions(chosen, [checked], hosts).summaries[0]


def plan_all(
    source: Path,
    targets: Sequence[Target],
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
) -> MultiConversionPlan:
    """Plans a ``convert_all`` with the same arguments, and estimates its cost. No tensor is read.

    The plan's ``total`` lists the tensors that are read once for several targets, and the bytes that are read again
    (``repeated_bytes``) because the budget does not allow otherwise.
    """
    from reshard.conversion.check_target import check_targets
    from reshard.conversion.make_plan import plan_conversions

    check_positive("hosts", hosts, "hosts that share the work, such as 16")
    limits = limits_of(max_memory, workers, source, *_places(targets), max_growth=max_growth)
    checked = check_targets(targets, limits)
    chosen = source_of(source, step, item, unlisted, dequantize, lora, quantize_like)
    return plan_conversions(chosen, checked, hosts).answer()


@takes_options(Target)
def check_arguments(
    *,
    target: Path = "",
    max_memory: int | str | None = None,
    workers: int | None = None,
    **options: Unpack[ConvertOptions],
) -> Limits:
    """Checks arguments of ``plan`` and ``convert`` without a checkpoint, and raises the errors that ``plan`` would raise.

    Args:
        target: its name is checked, not its content.

    Returns the memory in bytes and the number of workers that the arguments mean.
    """
    from reshard.conversion.check_target import check_target
    from reshard.conversion.target_content import refuse_other_options
    from reshard.formats.known_formats import known_format
    from reshard.planning.rules import check_rules

    limits = limits_of(max_memory, workers)
    checked = check_target(Target(target, **options), limits)
    check_rules(checked.changes)
    if checked.to is not None:
        refuse_other_options(known_format(checked.to), checked)
    return limits


@takes_options(Target)
def convert(
    source: Path,
    target: Path,
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
    executor: Executor | None = None,
    parts: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    before_publish: Callable[[str], None] | None = None,
    **options: Unpack[ConvertOptions],
) -> ConversionReport:
    """Converts the checkpoint ``source`` to ``target``, which appears whole or not at all.

    The same call resumes an interrupted run where it stopped. If ``target`` is already the finished result of this
    conversion, nothing is done, and the report has the digests that ``target`` recorded.

    Args:
        target: a folder, a file, a folder in a bucket, or ``hf://namespace/name[@branch][/folder]``: a model on the Hugging Face hub, which gets
            safetensors files by one commit. ``progress`` is then called from the threads that send, too, one at a time.
        step, item, unlisted, max_memory, workers, max_growth: as for ``plan``.
        dequantize: reads quantised weights as the weights that they stand for, of this dtype: ``"bfloat16"`` or ``"float32"``. Their scales
            are not in the target, and config.json says nothing of them. Each weight is computed in float32 and then rounded; the report
            says which are exact. With None codes and scales are copied as they are.
        lora: adapters that are merged into the weights, after dequantize: the folder of each, or ``"FOLDER=SCALE"`` for a part of its strength.
        quantize_like: a quantised checkpoint, whose codes and scales the weights get; the last of the three. Its scales must fit: a weight that
            is too large for them is an error.
        executor: does parts of the conversion, in processes on any host that sees source and target; ``max_memory`` and ``workers`` are
            then those of a part. A ``ThreadPoolExecutor`` runs the tasks, unless ``parts`` is given. With None tasks run in threads of this
            process; for a large conversion with more than four workers, in threads of new processes, which import no code of the caller's
            program.
        parts: their number, with an executor. With None it is six for each of the executor's ``hosts`` (``RayExecutor`` has this attribute;
            others count as one host), and fewer for a small conversion.
        progress: called after each task, from the calling thread; with parts several times a second.
        before_publish: called with the target's path when the target is complete, checked and synced, right before it
            appears. If it raises, nothing is published, and the same call resumes at this point.
        options: layout, mesh, select, cast, check and so on; ``reshard.ConvertOptions`` documents them.

    Raises ResumeError if an interrupted run to ``target`` was another conversion, or its source changed since;
    SourceChangedError if the source changes while it is read.

    >>> convert("ckpt/100", "served", layout="serving.yaml", cast={"float": "bfloat16"})  # doctest: +SKIP
    """
    from reshard.conversion.check_target import check_target

    limits = limits_of(max_memory, workers, source, target, max_growth=max_growth)
    asked = Target(target, **options)
    checked = check_target(asked, limits)
    chosen = source_of(source, step, item, unlisted, dequantize, lora, quantize_like)
    how = (limits, executor, parts, progress, before_publish)
    return converted(chosen, [asked], [checked], *how).reports[0]


def convert_all(
    source: Path,
    targets: Sequence[Target],
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
    executor: Executor | None = None,
    parts: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    before_publish: Callable[[str], None] | None = None,
) -> MultiReport:
    """Converts the checkpoint ``source`` to several targets in one run, which reads it once if memory allows.

    Each target has the same bytes as from a ``convert`` of its own, and appears whole or not at all. The targets appear
    one after the other at the end, since no file system renames several folders in one step. If the run is killed in
    between, the same call finishes the others and leaves the published ones alone.

    Args:
        targets: no target may be the source or another target, or lie in one of them.
        step, item, unlisted: as for ``inspect``.
        dequantize, lora, quantize_like: as for ``convert``.
        max_memory: of the whole run, all targets together.
        workers, max_growth, executor, parts: as for ``convert``.
        progress: as for ``convert``; it gets the sums of all targets.
        before_publish: called for each target; as for ``convert``.

    Raises the errors of ``convert``. An error that concerns one target names it, and has it as ``target``.

    >>> convert_all("ckpt/100", [Target("a"), Target("b", mesh="model=8")])  # doctest: +SKIP
    """
    from reshard.conversion.check_target import check_targets

    limits = limits_of(max_memory, workers, source, *_places(targets), max_growth=max_growth)
    checked = check_targets(targets, limits)
    chosen = source_of(source, step, item, unlisted, dequantize, lora, quantize_like)
    how = (limits, executor, parts, progress, before_publish)
    return converted(chosen, targets, checked, *how)


def converted(
    chosen: CheckpointPath,
    targets: Sequence[Target],
    checked: Sequence[CheckedTarget],
    limits: Limits,
    executor: Executor | None,
    parts: int | None,
    progress: Callable[[Progress], None] | None,
    before_publish: Callable[[str], None] | None,
) -> MultiReport:
    """Converts to all targets, in parts if the executor does these; PlanError for arguments that make no sense together."""
    from concurrent.futures import Executor, ThreadPoolExecutor

    from reshard.conversion.convert import convert_targets
    from reshard.conversion.report import MultiReport
    from reshard.storage.location import is_in_hub

    if any(is_in_hub(one.target) for one in checked):
        from reshard.views.to_hub import convert_to_hub

        if len(checked) > 1 or executor is not None or parts is not None:
            raise PlanError(
                "a target on the hub is made by one process, in a commit of its own; convert to it alone, and leave out executor and parts"
            )
        report = convert_to_hub(chosen, checked[0], progress, before_publish)
        return MultiReport(report.source, (report,), report.read_bytes, report.seconds)
    if not isinstance(executor, Executor | None):
        raise PlanError(
            f"executor is {executor!r}; expected a concurrent.futures.Executor, or None for threads"
        )
    if parts is not None:
        check_positive("parts", parts, "parts that an executor does, such as 16")
        if executor is None:
            raise PlanError(
                f"parts is {parts}, but nothing is given that does them; give an executor, or do each part in a process of its own "
                "(convert_part) and commit"
            )
    if executor is None or (parts is None and isinstance(executor, ThreadPoolExecutor)):
        return convert_targets(chosen, checked, executor, progress, before_publish)
    from reshard.conversion.conversion_key import plainly
    from reshard.conversion.parts.on_executor import convert_in_parts

    checked, options = plainly(targets, limits)
    return convert_in_parts(chosen, checked, options, executor, parts, progress, before_publish)


def _places(targets: object) -> list[object]:
    """The paths of the targets; a later step refuses objects that are not a Target."""
    return (
        [one.target for one in targets if isinstance(one, Target)]
        if isinstance(targets, Iterable)
        else []
    )
