"""The public functions that read a checkpoint as a live tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from reshard.restoring.options import RestoreArguments
from reshard.signatures import takes_options

if TYPE_CHECKING:
    from reshard.arguments import PairRules, Path, Rules
    from reshard.checkpoint import OpenedCheckpoint
    from reshard.formats.choose import Step
    from reshard.restoring.options import RestoreOptions


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
    from reshard.formats.choose import choose_checkpoint

    return OpenedCheckpoint(choose_checkpoint(path, step, item))
