"""The public functions that read metadata only: they describe a checkpoint, or preview its split by a layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reshard.answers.record import making_many
from reshard.api.sources import source_of
from reshard.arguments import path_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reshard.arguments import Dequantized, Path, Unlisted
    from reshard.conversion.options import LayoutLike
    from reshard.formats.choose import Step
    from reshard.inspection.checkpoint_info import CheckpointInfo
    from reshard.inspection.layout_preview import LayoutPreview
    from reshard.inspection.run_steps import StepInfo
    from reshard.layout.device_mesh import MeshLike
    from reshard.layout.layout_file import MissingAxes


def inspect(
    path: Path,
    *,
    step: Step | None = None,
    item: str | None = None,
    unlisted: Unlisted = "leave",
    dequantize: Dequantized | None = None,
    lora: Sequence[Path] | None = None,
) -> CheckpointInfo:
    """Describes a checkpoint: names, shapes, dtypes, chunks, layouts. Reads metadata only.

    Args:
        path: a checkpoint, or with ``step`` the folder of a training run.
        step: the step of the run, a number or ``"latest"``.
        item: one item of a checkpoint that has several; names then begin below it.
        unlisted: the treatment of tensors and files in a folder of safetensors that its index does not list. ``"leave"``, the
            default, leaves them out with a warning, and refuses files that may not be one model. ``"include"`` takes all
            of them, and one file of several by itself.
        dequantize, lora: as for ``convert``: describes the tensors that they make.

    ``step`` and ``item`` are resolved to a path first: step 5 and item ``"model"`` of ``run`` are ``run/5/model``.

    Raises NotACheckpointError if there is no such step or item, IncompleteCheckpointError for a step that was never
    committed, PlanError for a step of a single checkpoint, or an item of a checkpoint without items.

    >>> inspect("run", step="latest", item="model")  # doctest: +SKIP
    """
    from reshard.formats.registry import open_reader
    from reshard.inspection.checkpoint_info import describe

    chosen = source_of(path, step, item, unlisted, dequantize, lora, what="checkpoint")
    with making_many():
        return describe(open_reader(chosen))


def is_checkpoint(path: Path) -> bool:
    """True if there is a committed checkpoint at a path. Fast, for listings; ``inspect`` says what is wrong with others."""
    return checkpoint_format(path) is not None


def checkpoint_format(path: Path) -> str | None:
    """The format of a checkpoint, such as ``"orbax"`` or ``"dcp"``; None if ``is_checkpoint`` is false."""
    from reshard.formats.registry import committed_format
    from reshard.storage.location import locate

    return committed_format(locate(path_of("checkpoint", path)))


def steps(path: Path) -> dict[int, str]:
    """The committed steps of a training run, ascending: from the number of each to the name of its folder.

    A step's folder is named by its number, with or without the prefix ``step_``, ``checkpoint_`` or ``ckpt_``, or these with a
    dash; a step of TensorFlow is named by the common prefix of its files, such as ``ckpt-7``. All steps of a run have the same prefix. A
    safetensors model counts once all of its files are there, a distributed checkpoint of torch once its ``.metadata`` is. A folder with
    any other name, such as ``small_7``, is a step only without any of these, if a CheckpointManager saved most of them with this prefix.

    Raises StorageError if the folder cannot be listed.
    """
    from reshard.formats.steps import committed_steps
    from reshard.storage.location import locate

    return committed_steps(locate(path_of("folder", path)))


def inspect_run(path: Path) -> tuple[StepInfo, ...]:
    """Describes a training run: every step with its state, size and time of writing.

    Looks at every file's status, and reads none. ``steps`` is faster and has the finished steps only.

    Raises MissingError if there is no such folder, PlanError if it is a checkpoint itself, NotACheckpointError if it has no
    steps.

    >>> [step.step for step in inspect_run("run") if step.is_finished]  # doctest: +SKIP
    """
    from reshard.inspection.run_steps import steps_of

    return steps_of(path)


def locate(path: Path, *, step: Step | None = None, item: str | None = None) -> str:
    """The path of a checkpoint that is named by a training run, a step and an item, such as ``run/1000/model``.

    Raises the errors of ``inspect`` if there is no such step or item.
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
    unlisted: Unlisted = "leave",
) -> LayoutPreview:
    """Previews the split of each tensor of a checkpoint by a layout; reads metadata only.

    Without a layout and a mesh it shows the present split of each tensor. ``layout``, ``mesh`` and ``missing_axes`` are
    options of ``reshard.ConvertOptions``; ``step``, ``item`` and ``unlisted`` are as for ``inspect``. Raises the errors of ``plan`` for this
    layout.
    """
    from reshard.inspection.layout_preview import preview
    from reshard.layout.read_layout import given_layout
    from reshard.planning.target_layouts import layout_of

    found = layout_of(given_layout(layout), mesh, missing_axes)
    return preview(inspect(source, step=step, item=item, unlisted=unlisted), found)


def starter_layout(
    source: Path,
    *,
    mesh: str | MeshLike | None = None,
    missing_axes: MissingAxes | None = None,
    step: Step | None = None,
    item: str | None = None,
    unlisted: Unlisted = "leave",
) -> str:
    """Writes a layout file (YAML, with comments) that gives every tensor of a checkpoint the axes that it has now.

    Names are merged into few patterns. The file has the checkpoint's own mesh, or ``mesh`` if it is given. For a mesh with other
    axes, or one that does not divide every dimension, and for a checkpoint that records no axes, the file is a
    proposal, and says so in its comments. Reads metadata only.

    Args:
        missing_axes: None, the default, proposes; the choices of ``reshard.ConvertOptions`` take the checkpoint's own axes only.

    Raises LayoutError if the axes do not fit ``mesh`` and ``missing_axes`` is given.

    >>> Path("serving.yaml").write_text(starter_layout("ckpt/100", mesh="model=8"))  # doctest: +SKIP
    """
    from reshard.inspection.starter_layout import starter_text
    from reshard.planning.target_layouts import SameAxes, layout_of

    found = layout_of(None, mesh, missing_axes or "error")
    over = found.mesh if isinstance(found, SameAxes) else None
    return starter_text(
        inspect(source, step=step, item=item, unlisted=unlisted), over, missing_axes
    )
