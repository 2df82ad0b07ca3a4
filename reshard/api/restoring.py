"""The public functions that read a checkpoint as a live tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from reshard.api.sources import source_of
from reshard.arguments import takes_options
from reshard.restoring.options import RestoreArguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reshard.arguments import CastRules, Dequantized, Path, Rules, Unlisted
    from reshard.checkpoint import OpenedCheckpoint
    from reshard.formats.choose import Step
    from reshard.restoring.options import RestoreOptions


Tree = TypeVar("Tree")


@overload
def restore(
    path: Path,
    like: Tree,
    layout: Any = None,
    partition: Any = None,
    select: Rules | None = None,
    cast: CastRules | None = None,
    *,
    step: Step | None = None,
    item: str | None = None,
    **options: Unpack[RestoreOptions],
) -> Tree: ...
@overload
def restore(
    path: Path,
    like: None = None,
    layout: Any = None,
    partition: Any = None,
    select: Rules | None = None,
    cast: CastRules | None = None,
    *,
    step: Step | None = None,
    item: str | None = None,
    **options: Unpack[RestoreOptions],
) -> Any: ...
@takes_options(RestoreArguments)
def restore(
    path: Path,
    like: Any = None,
    layout: Any = None,
    partition: Any = None,
    select: Rules | None = None,
    cast: CastRules | None = None,
    *,
    step: Step | None = None,
    item: str | None = None,
    unlisted: Unlisted = "leave",
    dequantize: Dequantized | None = None,
    lora: Sequence[Path] | None = None,
    **options: Unpack[RestoreOptions],
) -> Any:
    """Restores a checkpoint as a tree of live arrays. Each process reads only the bytes that its devices need.

    Without like, layout, mesh and partition the tree has dicts, lists and numpy arrays. Numbers, strings, None and empty
    containers are as they were saved, and PRNG keys are jax's, or uint32 arrays of their data if jax is not installed.

    Args:
        like: a tree of ``jax.ShapeDtypeStruct``, jax or numpy arrays, ShardedVariables, numbers and strings. The result
            has its structure. Names and shapes must be those of the checkpoint, and so must dtypes, but a stored
            dtype is converted to one that loses nothing, such as bfloat16 to float32. An array goes where the
            sharding of its struct says, or else to jax's default device.
        layout: a LayoutMap, the path or content of a layout file, or a tree of TensorLayouts, jax shardings or structs
            with shardings, in which a leaf applies to everything below it. LayoutMaps and TensorLayouts may be those of
            Keras. The tensors that it names become jax arrays, and it overrides shardings of ``like``; a tensor that was
            saved as a numpy array and is not named stays one. A mesh without devices takes ``jax.devices()`` in order; their number must be its size.
        partition: a number of shards, a partitioner, or a mapping from regular expressions to these. The tensors become
            ShardedVariables; a tensor that no expression matches stays whole.
        select, cast: as in ``reshard.ConvertOptions``. Only ``cast`` converts to a dtype that may lose something, and an
            int becomes a float only if the rule has its full name.
        step, item, unlisted: the step of a run, the item of several, and the treatment of unlisted tensors and files; as for
            ``inspect``.
        dequantize, lora: as for ``convert``; the tensors that they make are restored.
        options: drop, rename, mesh, missing, max_memory, report and so on; ``reshard.RestoreOptions`` documents them.
            With ``into`` existing arrays are filled and returned.

    Before a tensor is read, it raises one TreeError that names every tensor that is missing, unexpected, or has another
    shape or dtype; LayoutError or PlanError for arguments that do not fit the checkpoint; MemoryBudgetError if the budget is too
    small. CorruptError means that stored bytes are wrong.
    """
    opened = open_checkpoint(
        path, step=step, item=item, unlisted=unlisted, dequantize=dequantize, lora=lora
    )
    return opened.restore(like, layout, partition, select, cast, **options)


def open_checkpoint(
    path: Path,
    *,
    step: Step | None = None,
    item: str | None = None,
    unlisted: Unlisted = "leave",
    dequantize: Dequantized | None = None,
    lora: Sequence[Path] | None = None,
) -> OpenedCheckpoint:
    """Opens a checkpoint: reads its metadata now, so that ``restore`` can be called on it any number of times.

    Takes the arguments of ``inspect`` and raises its errors. ``OpenedCheckpoint.restore`` takes the arguments of
    ``reshard.restore`` except path, and those that both take.

    >>> opened = open_checkpoint("run", step=100)  # doctest: +SKIP
    >>> table = opened.restore(select=["^table$"], partition=4)["table"]  # doctest: +SKIP
    """
    from reshard.checkpoint import OpenedCheckpoint

    return OpenedCheckpoint(
        source_of(path, step, item, unlisted, dequantize, lora, what="checkpoint")
    )
