"""The public functions that read metadata only: what a checkpoint has, and how a layout would split it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reshard.arguments import path_of

if TYPE_CHECKING:
    from reshard.arguments import Path
    from reshard.conversion.options import LayoutLike
    from reshard.formats.choose import Step
    from reshard.inspection.checkpoint_info import CheckpointInfo
    from reshard.inspection.layout_preview import LayoutPreview
    from reshard.layout.device_mesh import MeshLike
    from reshard.layout.layout_file import MissingAxes


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
    from reshard.formats.choose import choose_checkpoint
    from reshard.formats.registry import open_reader
    from reshard.inspection.checkpoint_info import describe

    return describe(open_reader(choose_checkpoint(path, step, item)))


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


def locate(path: Path, *, step: Step | None = None, item: str | None = None) -> str:
    """The path of the checkpoint that a path, a step of a training run and an item name: ``run/1000/model``.

    Raises what ``inspect`` raises where there is no such step or item.
    """
    from reshard.formats.choose import choose_checkpoint

    return choose_checkpoint(path, step, item).path


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
