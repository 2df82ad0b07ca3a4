"""What programs call: inspect, plan, convert, verify and restore checkpoints.

Paths are local. What is returned is frozen data, or a tree of live arrays; everything that is raised
on purpose is a ``ReshardError``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from reshard.engine.arguments import bytes_of, changes_of, limits_of, path_of
from reshard.engine.goal import Goal

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from reshard.engine.arguments import PairRules, Path, Rules
    from reshard.engine.checkpoint_info import CheckpointInfo
    from reshard.engine.compare import Verification
    from reshard.engine.conversion import ConversionPlan, JointConversionPlan
    from reshard.engine.fingerprint import Fingerprint
    from reshard.engine.goal import LayoutLike
    from reshard.engine.lay_out import LayoutPreview
    from reshard.engine.options import Check, Wanted
    from reshard.engine.read_digests import ReadLimits
    from reshard.engine.report import ConversionReport, JointReport, Progress
    from reshard.formats.base import Style
    from reshard.layout.mesh import DeviceMesh
    from reshard.restoring.goals import Missing, Unexpected
    from reshard.restoring.opened import OpenedCheckpoint, RestoreReport


def inspect(path: Path) -> CheckpointInfo:
    """What a checkpoint holds: names, shapes, dtypes, chunks, layouts. Reads metadata only."""
    from reshard.engine.checkpoint_info import describe
    from reshard.formats.detect import open_reader

    return describe(open_reader(path_of("checkpoint", path)))


def is_checkpoint(path: Path) -> bool:
    """Whether a folder bears the marks of a checkpoint, and none of one that was never committed.

    A quick look for listings; ``inspect`` tells what is wrong with the others.
    """
    from reshard.formats.steps import is_committed

    return is_committed(path_of("checkpoint", path))


def steps(path: Path) -> dict[int, str]:
    """The committed steps of a training run's folder (a CheckpointManager's), ascending, and their folders' names.

    Raises StorageError where the folder cannot be listed.
    """
    from reshard.formats.steps import committed_steps

    return committed_steps(path_of("folder", path))


def lay_out(
    src: Path, layout: LayoutLike, *, mesh: str | DeviceMesh | None = None
) -> LayoutPreview:
    """How a layout would cut each tensor of a checkpoint; reads metadata only.

    Arguments as for ``plan``. Raises what ``plan`` would raise for this layout.
    """
    from reshard.engine.lay_out import preview
    from reshard.engine.layouts import layout_of

    found = layout_of(layout, mesh)
    return preview(inspect(src), found)


def plan(
    src: Path,
    dst: Path,
    *,
    layout: LayoutLike = None,
    mesh: str | DeviceMesh | None = None,
    select: Rules = (),
    drop: Rules = (),
    rename: PairRules = (),
    cast: PairRules = (),
    max_memory: int | str | None = None,
    workers: int | None = None,
    compression: str = "none",
    chunk_bytes: int | str | None = None,
    ocdbt: bool = False,
    style: Style | None = None,
    overwrite: bool = False,
) -> ConversionPlan:
    """What ``convert`` with the same arguments would do, and what it would cost; moves nothing.

    Args:
        layout: a layout file's path or content, or a LayoutMap; None keeps the source's layouts.
        mesh: takes the place of the layout file's mesh; ``"data=4,model=2"``. Without a layout
            every tensor keeps the source's axes, over this mesh.
        select, drop: patterns searched in names: what is kept, and what is left out of that.
        rename, cast: pairs of a pattern and a replacement, or a dtype; the first that matches counts.
        max_memory: bytes, or text such as ``"512MiB"``; the default is a quarter of the memory
            that the machine or its cgroup allows, or 1 GiB, the smaller.
        workers: tasks at once; the default is the number of processors, at least 2 and at most 16.
        compression: ``none``, ``zstd[:level]``, ``gzip[:level]``, ``blosc`` or ``keep``.
        chunk_bytes: target chunks above this are subdivided; the default is 256 MiB.
        ocdbt: pack the target into one OCDBT database instead of plain files.
        style: form of the target, ``"v0"`` or ``"v1"``; None keeps the source's.
        overwrite: whether an existing target may be replaced.
    """
    from reshard.engine.conversion import prepare

    goal = Goal(
        dst,
        layout,
        mesh,
        select,
        drop,
        rename,
        cast,
        compression,
        chunk_bytes,
        ocdbt,
        style,
        overwrite,
    )
    wanted = _wanted(goal, limits_of(max_memory, workers))
    return prepare(path_of("source", src), wanted.target, wanted.options).summary


def plan_to_many(
    src: Path,
    goals: Sequence[Goal],
    *,
    max_memory: int | str | None = None,
    workers: int | None = None,
) -> JointConversionPlan:
    """What ``convert_to_many`` with the same arguments would do, and what it would cost; moves nothing.

    ``joint`` of what is returned tells which tensors are read once for which targets, and, as
    ``repeated_bytes``, how much is read again because the budget allows no other way.
    """
    from reshard.engine.conversion import prepare_joint

    wanted = _all_wanted(goals, limits_of(max_memory, workers))
    return prepare_joint(path_of("source", src), wanted).summary


def check_arguments(
    *,
    layout: LayoutLike = None,
    mesh: str | DeviceMesh | None = None,
    select: Rules = (),
    drop: Rules = (),
    rename: PairRules = (),
    cast: PairRules = (),
    max_memory: int | str | None = None,
    workers: int | None = None,
    compression: str = "none",
    chunk_bytes: int | str | None = None,
    ocdbt: bool = False,
    style: Style | None = None,
    overwrite: bool = False,
) -> ReadLimits:
    """Raises what ``plan`` would raise for these arguments with any checkpoint; reads none.

    Arguments as for ``plan``. Returns the bytes and the workers that they stand for.
    """
    from reshard.planning.transforms import check_rules

    goal = Goal(
        "",
        layout,
        mesh,
        select,
        drop,
        rename,
        cast,
        compression,
        chunk_bytes,
        ocdbt,
        style,
        overwrite,
    )
    limits = limits_of(max_memory, workers)
    check_rules(_wanted(goal, limits).options.changes)
    return limits


def convert(
    src: Path,
    dst: Path,
    *,
    layout: LayoutLike = None,
    mesh: str | DeviceMesh | None = None,
    select: Rules = (),
    drop: Rules = (),
    rename: PairRules = (),
    cast: PairRules = (),
    max_memory: int | str | None = None,
    workers: int | None = None,
    compression: str = "none",
    chunk_bytes: int | str | None = None,
    ocdbt: bool = False,
    style: Style | None = None,
    overwrite: bool = False,
    verify: Check = "written",
    restart: bool = False,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> ConversionReport:
    """Converts the checkpoint ``src`` to ``dst``, which appears whole or not at all.

    Run again after it ended early, however it ended, it goes on where it was left; where ``dst`` is the
    finished result already, nothing is touched, and the report says so and what ``dst`` records of itself.

    Arguments as for ``plan``, and:

    Args:
        verify: ``"readback"`` reads the output again before it appears, and only then does the
            report say "proved".
        restart: start over, whatever an unfinished run to ``dst`` has left.
        executor: where tasks run; None makes threads.
        progress: called from this thread after each task.

    Raises ResumeError where an unfinished run to ``dst`` was another conversion, or of a source that
    changed since; SourceChangedError where the source changed while it was read.
    """
    from reshard.engine.convert import convert

    goal = Goal(
        dst, layout, mesh, select, drop, rename, cast, compression, chunk_bytes, ocdbt, style, overwrite,
        verify, restart,
    )  # fmt: skip
    wanted = _wanted(goal, limits_of(max_memory, workers))
    source, options = path_of("source", src), wanted.options
    return convert(source, wanted.target, options, executor, progress, restart=restart)


def convert_to_many(
    src: Path,
    goals: Sequence[Goal],
    *,
    max_memory: int | str | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> JointReport:
    """Converts the checkpoint ``src`` to several targets in one run, which reads it once where memory allows.

    Each target becomes what ``convert`` alone would have made of it, whole or not at all. They appear
    one after the other at the end: no file system can rename several folders in one step, so that a
    run which is killed right then leaves some published and some to be gone on with. The same call
    goes on with those, and leaves alone what is there.

    Args:
        goals: the targets, none of which may be, or lie in, another or the source.
        max_memory: of the whole run, all targets together.
        workers, executor: as for ``convert``.
        progress: told of all targets together.

    Raises what ``convert`` raises; an error that is about one target names it, also as its ``target``.

    >>> convert_to_many("ckpt/100", [Goal("a"), Goal("b", mesh="model=8")])  # doctest: +SKIP
    """
    from reshard.engine.convert import convert_joint

    wanted = _all_wanted(goals, limits_of(max_memory, workers))
    return convert_joint(path_of("source", src), wanted, executor, progress)


def restore(
    path: Path,
    target: Any = None,
    layout: Any = None,
    partition: Any = None,
    select: Rules | None = None,
    cast: PairRules | None = None,
    *,
    drop: Rules | None = None,
    rename: PairRules | None = None,
    axis: int | None = None,
    partition_strategy: str | None = None,
    devices: Sequence[Any] | None = None,
    missing: Missing = "error",
    unexpected: Unexpected = "error",
    max_memory: int | str | None = None,
    workers: int | None = None,
    verify: bool = True,
    progress: Callable[[Progress], None] | None = None,
    report: Callable[[RestoreReport], None] | None = None,
) -> Any:
    """A checkpoint as a live tree; each process reads only the bytes that its devices need.

    Without target, layout and partition: numpy arrays in dicts and lists; numbers, strings, None and
    empty containers as they were saved, PRNG keys as jax's own.

    Args:
        target: a tree of ``jax.ShapeDtypeStruct``, jax or numpy arrays, ShardedVariables, numbers and
            strings; its structure is kept, its names must be those of the checkpoint, and its shapes
            and dtypes those that are stored (a dtype that loses nothing, such as float32 for
            bfloat16, is converted to). A struct's sharding says where it goes, and without one it
            goes to jax's default device.
        layout: a LayoutMap, the path or content of a layout file, or a tree of TensorLayouts or jax
            shardings, of which a leaf stands for everything below it; then jax arrays are made. A mesh
            without devices takes ``jax.devices()`` in order where their number is its size. It
            overrides a target's shardings where it names a tensor.
        partition: a number of shards, a partitioner, or a mapping from regular expressions to
            these; then ShardedVariables are made, and what matches nothing stays whole.
        select, drop: patterns searched in names: what is kept, and what is left out of that.
        rename, cast: pairs of a pattern and a replacement, or a dtype; the first that matches counts.
            What may lose something is cast only so, and an int becomes a float only by name.
        axis: the dimension that ``partition`` splits; the default is 0, or the recorded one.
        partition_strategy: ``"div"`` or ``"mod"``; None keeps what was recorded, or ``"div"``.
        devices: devices or shardings to which shards are dealt in turn.
        missing: ``"keep"`` leaves what the checkpoint lacks as it is in the target.
        unexpected: ``"ignore"`` leaves out what the target does not ask for.
        max_memory: bytes, or text such as ``"512MiB"``, of what is taken beside the result; the
            default is a quarter of the memory that the machine or its cgroup allows, or 1 GiB.
        workers: chunks read at once; the default is the number of processors, at least 2 and at most 16.
        verify: whether tensors that are read whole are compared with the digests recorded of them.
        progress: called from this thread after each piece of work.
        report: called once at the end with a ``RestoreReport``.

    Raises one TreeError that names every missing, unexpected and wrongly shaped or typed tensor,
    before a tensor's byte is read; LayoutError, PlanError or MemoryBudgetError likewise for what makes
    no sense or does not fit; CorruptError where stored bytes are wrong.
    """
    from reshard.restoring.opened import OpenedCheckpoint

    return OpenedCheckpoint(path).restore(
        target,
        layout,
        partition,
        select,
        cast,
        drop=drop,
        rename=rename,
        axis=axis,
        partition_strategy=partition_strategy,
        devices=devices,
        missing=missing,
        unexpected=unexpected,
        max_memory=max_memory,
        workers=workers,
        verify=verify,
        progress=progress,
        report=report,
    )


def open_checkpoint(path: Path) -> OpenedCheckpoint:
    """Reads a checkpoint's metadata; its tensors are restored later, in any number of goes.

    ``restore`` of what it returns takes the arguments of ``reshard.restore`` behind the path. Raises
    what ``inspect`` raises.

    >>> opened = open_checkpoint("ckpt/100")  # doctest: +SKIP
    >>> table = opened.restore(select=["^table$"], partition=4)["table"]  # doctest: +SKIP
    """
    from reshard.restoring.opened import OpenedCheckpoint

    return OpenedCheckpoint(path)


def verify(
    a: Path,
    b: Path | None = None,
    *,
    max_memory: int | str | None = None,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Verification:
    """Compares two checkpoints bit by bit, or one with what it recorded of itself when it was written.

    Every tensor and every recorded file is read, and all damage is in what is returned. Raises where
    there is no checkpoint, or one that recorded nothing of itself and cannot be read.
    """
    from reshard.engine.verify import verify_checkpoints

    limits = limits_of(max_memory, workers)
    other = None if b is None else path_of("checkpoint", b)
    return verify_checkpoints(path_of("checkpoint", a), other, limits, progress)


def fingerprint(
    path: Path,
    *,
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
        overwrite: whether a record that is there may be replaced.
        max_memory: bytes, or text such as ``"512MiB"``.
        workers: chunks read at once.
        progress: called from this thread after each piece of work.

    Raises TargetExistsError where there is a record already, CorruptError where something cannot be
    read now, StorageError where the file system refuses; then nothing is recorded.
    """
    from reshard.engine.fingerprint import fingerprint_checkpoint

    limits = limits_of(max_memory, workers)
    return fingerprint_checkpoint(path_of("checkpoint", path), limits, overwrite, progress)


def _all_wanted(goals: Sequence[Goal], limits: ReadLimits) -> list[Wanted]:
    from reshard.errors import PlanError

    listed = list(goals) if isinstance(goals, Iterable) else []
    if not listed or not all(isinstance(goal, Goal) for goal in listed):
        raise PlanError(f"goals is {goals!r}; expected a list of at least one reshard.Goal")
    return [_wanted(goal, limits) for goal in listed]


def _wanted(goal: Goal, limits: ReadLimits) -> Wanted:
    """A goal checked and made into what the engine works with; a layout file's own changes come first."""
    from reshard.engine.layouts import layout_of
    from reshard.engine.options import Options, Wanted, parse_compression
    from reshard.layout.layout_file import LayoutFile
    from reshard.planning.chunking import SPLIT_ABOVE_BYTES

    changes = changes_of(goal.select, goal.drop, goal.rename, goal.cast)
    layout = layout_of(goal.layout, goal.mesh)
    limit = bytes_of("chunk_bytes", goal.chunk_bytes)
    options = Options(
        max_memory=limits.max_memory,
        workers=limits.workers,
        layout=layout,
        changes=layout.changes + changes if isinstance(layout, LayoutFile) else changes,
        encoding=parse_compression(goal.compression),
        chunk_bytes=SPLIT_ABOVE_BYTES if limit is None else limit,
        ocdbt=goal.ocdbt,
        style=goal.style,
        overwrite=goal.overwrite,
        check=goal.verify,
    )
    return Wanted(path_of("target", goal.dst), options, goal.restart)
