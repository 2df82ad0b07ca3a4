"""From a checkpoint and a layout file to what a picture shows: each tensor before and after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from reshard.cli.picture import Split
from reshard.layout.grid import Grid
from reshard.layout.layout_file import LayoutFile
from reshard.layout.resolve import layout_for, overlaps, unmatched_rules
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.transforms import Rewrite, rewrites

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reshard.engine.checkpoint_info import CheckpointInfo


@dataclass(frozen=True)
class LaidOut:
    """A tensor with the slices that a layout file gives it.

    Attributes:
        source: as the checkpoint has it.
        target: name, shape, dtype and layout as the file asks; its storage is not decided here.
        split: who holds what in the target; without a layout where it is split by count or size.
        partition: strategy, amount and axis, where it is split by count or size.
    """

    source: TensorSpec
    target: TensorSpec
    split: Split
    partition: Mapping[str, Any] | None = None

    @property
    def source_split(self) -> Split | None:
        """Who held what in the source, or None where that was not recorded."""
        layout = self.source.layout
        if layout is None or layout.device_mesh is None:
            return None
        return Split(layout.grid(self.source.shape, self.source.name), layout)

    @property
    def is_whole(self) -> bool:
        """Whether it is cut on neither side, as far as is known."""
        source = self.source_split
        return self.split.grid.count <= 1 and (source is None or source.grid.count <= 1)


@dataclass(frozen=True)
class LayoutPicture:
    """Everything a picture of a layout needs."""

    tensors: tuple[LaidOut, ...]
    warnings: tuple[str, ...]


def layout_picture(info: CheckpointInfo, file: LayoutFile) -> LayoutPicture:
    """How ``file`` lays out those tensors of ``info`` that its own changes keep.

    Raises LayoutError or PlanError where a plan with this file would.
    """
    specs = {t.spec.name: t.spec for t in info.tensors}
    keys = {t.spec.name for t in info.tensors if t.is_key}
    kept = rewrites(file.changes, [leaf.name for leaf in info.leaves], specs, keys)
    tensors = tuple(_laid_out(specs[r.source], r, file) for r in kept if r.source in specs)
    return LayoutPicture(tensors, tuple(_warnings(file, [t.target.name for t in tensors])))


def _laid_out(source: TensorSpec, rewrite: Rewrite, file: LayoutFile) -> LaidOut:
    dtype = rewrite.dtype or source.dtype
    found = layout_for(file, rewrite.target, source.shape, dtype)
    layout = None if found.partition is not None else found.layout
    target = replace(
        source,
        name=rewrite.target,
        dtype=dtype,
        storage=Grid.whole(source.shape),
        chunk_shape=None,
        layout=layout,
    )
    return LaidOut(source, target, Split(found.slices, layout), found.partition)


def _warnings(file: LayoutFile, names: Sequence[str]) -> Iterator[str]:
    for rule in unmatched_rules(file, names):
        yield f"{rule.label or repr(rule.match)} of the layout matches no tensor"
    for overlap in overlaps(file, names):
        some = ", ".join(overlap.names[:3]) + (", …" if len(overlap.names) > 3 else "")
        yield (
            f"{len(overlap.names)} tensors match both {overlap.winner} and {overlap.shadowed}; "
            f"the first decides ({some})"
        )
