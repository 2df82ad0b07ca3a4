"""The public functions: inspect, plan, convert, verify and restore checkpoints, and what goes with them.

Each checks its arguments, finds the path of the checkpoint, and calls the room that does the work. Paths are
local. Results are frozen records or trees of live arrays; every deliberate error is a ``ReshardError``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from reshard.arguments import changes_of, path_of
from reshard.conversion.options import Target
from reshard.engine.limits import limits_of
from reshard.restoring.options import RestoreArguments
from reshard.signatures import takes_options

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from reshard.arguments import PairRules, Path, Rules
    from reshard.checkpoint import OpenedCheckpoint
    from reshard.conversion.options import ConvertOptions, LayoutLike
    from reshard.conversion.plan import ConversionPlan, MultiConversionPlan
    from reshard.conversion.report import ConversionReport, MultiReport
    from reshard.engine.limits import Limits
    from reshard.engine.progress import Progress
    from reshard.formats.choose import Step
    from reshard.inspection.checkpoint_info import CheckpointInfo
    from reshard.inspection.layout_preview import LayoutPreview
    from reshard.layout.device_mesh import MeshLike
    from reshard.layout.layout_file import MissingAxes
    from reshard.restoring.options import RestoreOptions
    from reshard.storage.leftovers import Leftovers
    from reshard.verification.compare import Verification
    from reshard.verification.diff_report import DiffReport
    from reshard.verification.fingerprint import Fingerprint


def inspect(path: Path, *, step: Step | None = None, item: str | None = None) -> CheckpointInfo:
    """What a checkpoint holds: names, shapes, dtypes, chunks, layouts. Reads metadata only.

    Args:
        path: a checkpoint, or with ``step`` the folder of a training run.
        step: which step of the run, a number or ``"latest"``.
        item: one item of a checkpoint that has several; names then begin below it.

    ``step`` and ``item`` become a plain path before anything is read: ``run``, step 5 and item ``"model"``
    are ``run/5/model``. Raises PlanError where they make no sense for what is there, NotACheckpointError
    where there is no such step or item, IncompleteCheckpointError for a step that was never committed.

    >>> inspect("run", step="latest", item="model")  # doctest: +SKIP
    """
    from reshard.formats.registry import open_reader
    from reshard.inspection.checkpoint_info import describe

    return describe(open_reader(_chosen("checkpoint", path, step, item)))


def is_checkpoint(path: Path) -> bool:
    """Whether a path is a checkpoint, and not one that was never committed.

    A quick look for listings; ``inspect`` says what is wrong with the others.
    """
    return checkpoint_format(path) is not None


def checkpoint_format(path: Path) -> str | None:
    """The format of a checkpoint, ``"orbax"`` or ``"safetensors"``; None where ``is_checkpoint`` is false."""
    from reshard.formats.registry import committed_format
    from reshard.storage.location import locate

    return committed_format(locate(path_of("checkpoint", path)))


def steps(path: Path) -> dict[int, str]:
    """The committed steps of a training run's folder (a CheckpointManager's), ascending, and their folders' names.

    A step's folder is named by its number alone or behind ``step_``, ``checkpoint_`` or ``ckpt_``; all of a run
    are named alike. Checkpoints of other names, such as ``small_7``, are no steps.

    Raises StorageError where the folder cannot be listed.
    """
    from reshard.formats.steps import committed_steps
    from reshard.storage.location import locate

    return committed_steps(locate(path_of("folder", path)))


def preview_layout(
    source: Path,
    layout: LayoutLike = None,
    *,
    mesh: str | MeshLike | None = None,
    missing_axes: MissingAxes = "error",
    step: Step | None = None,
    item: str | None = None,
) -> LayoutPreview:
    """How a layout would cut each tensor of a checkpoint; reads metadata only.

    Without a layout and a mesh: how each tensor is cut as it is. ``layout``, ``mesh`` and ``missing_axes`` are those of
    ``reshard.ConvertOptions``, ``step`` and ``item`` those of ``inspect``. Raises what ``plan`` would raise for this layout.
    """
    from reshard.inspection.layout_preview import preview
    from reshard.planning.target_layouts import layout_of

    found = layout_of(layout, mesh, missing_axes)
    return preview(inspect(source, step=step, item=item), found)


def starter_layout(
    source: Path,
    *,
    mesh: str | MeshLike | None = None,
    missing_axes: MissingAxes = "error",
    step: Step | None = None,
    item: str | None = None,
) -> str:
    """A layout file (YAML, with comments) that gives every tensor of a checkpoint the axes that it has.

    Names are merged into few patterns. Over ``mesh`` instead of the checkpoint's own if one is given; then
    LayoutError where the axes do not fit, and ``missing_axes`` is that of ``reshard.ConvertOptions``. A checkpoint that
    records no axes gets a proposal. Reads metadata only.

    >>> Path("serving.yaml").write_text(starter_layout("ckpt/100", mesh="model=8"))  # doctest: +SKIP
    """
    from reshard.inspection.starter_layout import starter_text
    from reshard.planning.target_layouts import SameAxes, layout_of

    found = layout_of(None, mesh, missing_axes)
    over = found.mesh if isinstance(found, SameAxes) else None
    return starter_text(inspect(source, step=step, item=item), over, missing_axes)


def locate(path: Path, *, step: Step | None = None, item: str | None = None) -> str:
    """The path of the checkpoint that a path, a step of a training run and an item name: ``run/1000/model``.

    Raises what ``inspect`` raises where there is no such step or item.
    """
    return _chosen("checkpoint", path, step, item)


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

    limits = limits_of(max_memory, workers, source, target)
    checked = check_target(Target("" if target is None else target, **options), limits)
    source = _chosen("source", source, step, item)
    if target is None:
        return plan_without_target(source, checked.options)
    return plan_all(source, [checked]).plans[0]


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

    checked = check_targets(targets, limits_of(max_memory, workers, source, *_places(targets)))
    return plan_all(_chosen("source", source, step, item), checked)


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

    checked = check_target(
        Target(target, **options), limits_of(max_memory, workers, source, target)
    )
    source = _chosen("source", source, step, item)
    return convert_all(source, [checked], executor, progress, before_publish).reports[0]


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

    checked = check_targets(targets, limits_of(max_memory, workers, source, *_places(targets)))
    source = _chosen("source", source, step, item)
    return convert_all(source, checked, executor, progress, before_publish)


@takes_options(RestoreArguments)
def restore(
    path: Path,
    like: Any = None,
    layout: Any = None,
    partition: Any = None,
    select: Rules | None = None,
    cast: PairRules | None = None,
    *,
    step: Step | None = None,
    item: str | None = None,
    **options: Unpack[RestoreOptions],
) -> Any:
    """A checkpoint as a live tree; each process reads only the bytes that its devices need.

    Without like, layout and partition: numpy arrays in dicts and lists; numbers, strings, None and
    empty containers as they were saved, PRNG keys as jax's own.

    Args:
        like: a tree of ``jax.ShapeDtypeStruct``, jax or numpy arrays, ShardedVariables, numbers and
            strings; its structure is kept, its names must be those of the checkpoint, and its shapes
            and dtypes those that are stored (a dtype that loses nothing, such as float32 for
            bfloat16, is converted to). A struct's sharding says where it goes, and without one it
            goes to jax's default device.
        layout: a LayoutMap, the path or content of a layout file, or a tree of TensorLayouts or jax
            shardings (or structs that have one), of which a leaf stands for everything below it; then
            jax arrays are made. A mesh
            without devices takes ``jax.devices()`` in order where their number is its size. It
            overrides the shardings of ``like`` where it names a tensor. What was saved as a numpy array
            and is not named stays one.
        partition: a number of shards, a partitioner, or a mapping from regular expressions to
            these; then ShardedVariables are made, and what matches nothing stays whole.
        select, cast: as in ``reshard.ConvertOptions``; but what may lose something is cast only so, and an int
            becomes a float only by name.
        step, item: which step of a run, and which item of several; as for ``inspect``.
        options: drop, rename, missing, max_memory, report and so on; ``reshard.RestoreOptions`` documents them.
            ``into`` fills arrays that are there, and returns them.

    Raises one TreeError that names every missing, unexpected and wrongly shaped or typed tensor,
    before a tensor's byte is read; LayoutError, PlanError or MemoryBudgetError likewise for what makes
    no sense or does not fit; CorruptError where stored bytes are wrong.
    """
    opened = open_checkpoint(path, step=step, item=item)
    return opened.restore(like, layout, partition, select, cast, **options)


def open_checkpoint(
    path: Path, *, step: Step | None = None, item: str | None = None
) -> OpenedCheckpoint:
    """Reads a checkpoint's metadata; its tensors are restored later, in any number of goes.

    Arguments as for ``inspect``, and it raises what ``inspect`` raises. ``restore`` of what it returns takes
    the arguments of ``reshard.restore`` but path, step and item.

    >>> opened = open_checkpoint("run", step=100)  # doctest: +SKIP
    >>> table = opened.restore(select=["^table$"], partition=4)["table"]  # doctest: +SKIP
    """
    from reshard.checkpoint import OpenedCheckpoint

    return OpenedCheckpoint(_chosen("checkpoint", path, step, item))


def verify(
    a: Path,
    b: Path | None = None,
    *,
    step: Step | None = None,
    item: str | None = None,
    select: Rules | None = None,
    drop: Rules | None = None,
    rename: PairRules | None = None,
    cast: PairRules | None = None,
    max_memory: int | str | None = None,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Verification:
    """Compares two checkpoints bit by bit, or one with what it recorded of itself when it was written.

    ``step`` and ``item`` choose ``a``, as for ``inspect``. Every tensor and every recorded file is read, and
    all damage is in what is returned. Where ``convert`` made B of A by rules, B records them: then each
    tensor of B is compared with the one that it was made of, and where it was cast, with a cast of that
    to the last bit.

    Args:
        select, drop, rename, cast: rules by which B was made of A, as in ``reshard.ConvertOptions``, in place of all
            those that B records. None leaves B's in force where all four are None, and else means no such rule.
        max_memory, workers, progress: as for ``diff``.

    Raises where there is no checkpoint, or one that recorded nothing of itself and cannot be read;
    PlanError for rules without B, and for rules that make no sense for A.

    >>> verify("ckpt/1000", "served").dropped  # doctest: +SKIP
    ('opt_state/0/mu/w',)
    """
    from reshard.verification.verify import made_by, verify_checkpoints

    limits = limits_of(max_memory, workers, a, b)
    other = None if b is None else path_of("checkpoint", b)
    rules = made_by(other, select, drop, rename, cast)
    return verify_checkpoints(_chosen("checkpoint", a, step, item), other, limits, progress, rules)


def diff(
    a: Path,
    b: Path,
    *,
    step: Step | None = None,
    item: str | None = None,
    select: Rules = (),
    drop: Rules = (),
    max_memory: int | str | None = None,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> DiffReport:
    """Which tensors of two checkpoints differ, and by how much, whatever their meshes and chunks.

    Reads every chunk of both, once where ``max_memory`` allows, whatever digests they recorded. A
    tensor is equal where shape, dtype and every bit are; else its differing elements are counted, and
    the largest difference and the relative norm are told (``reshard.verification.diff_report.TensorDiff``
    says exactly what). The same call gives the same
    numbers, in whatever order its tasks end; with another budget, other workers or other chunks
    the norm may differ in its last digits.

    Args:
        step, item: which step of a run, and which item of several, ``a`` is; as for ``inspect``.
        select, drop: which tensors are compared; as in ``reshard.ConvertOptions``.
        max_memory: bytes, or text such as ``"512MiB"``, of all buffers and metadata; the default is that of ``plan``.
        workers: tasks at once; the default is that of ``plan``.
        progress: called from this thread after each task.

    Raises CorruptError, naming tensor and chunk, where stored bytes are wrong; MemoryBudgetError, before
    anything is read, where the budget is too small; PlanError for a pattern that matches nothing.

    >>> found = diff("ckpt/100", "ckpt/200", select=["^params/"])  # doctest: +SKIP
    >>> found.tensors["params/kernel"].relative  # doctest: +SKIP
    """
    from reshard.verification.diff import diff_checkpoints

    changes = changes_of(select, drop, (), ())
    limits = limits_of(max_memory, workers, a, b)
    one, other = _chosen("checkpoint", a, step, item), path_of("checkpoint", b)
    return diff_checkpoints(one, other, changes, limits, progress)


def fingerprint(
    path: Path,
    *,
    step: Step | None = None,
    item: str | None = None,
    overwrite: bool = False,
    max_memory: int | str | None = None,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Fingerprint:
    """Records digests of all tensors and files of a checkpoint in it, so that later damage is found.

    For checkpoints that carry no checksum of their data, such as stock Orbax's. Reads them once, and
    adds a slices.json beside each ``_METADATA`` and at the top; nothing else is changed, and other
    programs do not mind it. ``verify``, ``convert`` and ``restore`` compare with it from then on.

    Args:
        step, item: which step of a run, and which item of several; as for ``inspect``.
        overwrite: whether a record that is there may be replaced.
        max_memory, workers, progress: as for ``diff``.

    Raises TargetExistsError where there is a record already, CorruptError where something cannot be
    read now, StorageError where the file system refuses; then nothing is recorded.
    """
    from reshard.verification.fingerprint import fingerprint_checkpoint

    limits = limits_of(max_memory, workers, path)
    return fingerprint_checkpoint(
        _chosen("checkpoint", path, step, item), limits, overwrite, progress
    )


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


def _chosen(what: str, path: Path, step: Step | None, item: str | None) -> str:
    from reshard.formats.choose import chosen

    return chosen(path_of(what, path), step, item)
