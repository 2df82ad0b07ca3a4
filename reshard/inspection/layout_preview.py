"""LayoutPreview: the slices of a checkpoint's tensors before and after a layout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from reshard.documents.checkpoints import LaidOutTensor, LayoutAnswer
from reshard.geometry.grid import Grid
from reshard.geometry.sizes import format_bytes
from reshard.inspection.checkpoint_info import CheckpointInfo
from reshard.layout.changes import Changes
from reshard.layout.layout_file import LayoutFile
from reshard.layout.tensor_spec import TensorSpec, change_text
from reshard.planning.rules import Rewrite, rewrites
from reshard.planning.target_layouts import Layout, layout_warnings, look_up, split
from reshard.record import Record, counted, several, warned


class TensorPreview(Record, frozen=True):
    """A tensor with the slices that a layout gives it.

    Attributes:
        source: the tensor in the checkpoint.
        target: name, shape, dtype and layout of the target; its chunks are chosen later.
        slices: the slices of the target.
        partition: strategy, amount and axis, if it is split by count or size.
    """

    source: TensorSpec
    target: TensorSpec
    slices: Grid
    partition: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        return f"TensorPreview({change_text(self.source, self.target)}, shards of {list(self.slices.largest)})"

    def _document(self) -> LaidOutTensor:
        source, target = self.source, self.target
        return LaidOutTensor(
            source=source.name,
            target=target.name,
            shape=target.shape,
            dtype=target.dtype,
            source_mesh=source._mesh_document,
            source_axes=source._axes,
            source_shards=source.slices.parts if source.layout else None,
            target_mesh=target._mesh_document,
            target_axes=target._axes,
            target_shards=self.slices.parts,
            target_shard_shape=self.slices.largest,
            target_shard_bytes=self.shard_bytes,
            partition=self.partition,
        )

    @property
    def is_partitioned(self) -> bool:
        """True if it is split by count or size instead of by mesh axes."""
        return self.partition is not None

    @property
    def target_bytes(self) -> int:
        """Decoded bytes of the whole target tensor."""
        return self.target.nbytes

    @property
    def shard_bytes(self) -> int:
        """Decoded bytes of the largest shard; over a mesh all shards are equal, and each device has one."""
        return math.prod(self.slices.largest) * self.target.itemsize


class LayoutPreview(Record, frozen=True):
    """Every tensor that a layout keeps, and warnings."""

    tensors: tuple[TensorPreview, ...]
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        each = sum(tensor.shard_bytes for tensor in self.tensors if not tensor.is_partitioned)
        headline = f"{counted(len(self.tensors), 'tensor')}, {format_bytes(each)} on each device"
        return several("LayoutPreview", headline, self.tensors, warned(self.warnings))

    def _document(self) -> LayoutAnswer:
        return LayoutAnswer(
            tensors=tuple(tensor._document() for tensor in self.tensors),
            device_bytes=sum(t.shard_bytes for t in self.tensors if not t.is_partitioned),
            partitioned_bytes=sum(t.target_bytes for t in self.tensors if t.is_partitioned),
            warnings=self.warnings,
        )


def preview(info: CheckpointInfo, layout: Layout | None) -> LayoutPreview:
    """Lays out the tensors of ``info`` that the layout's own changes keep.

    Raises LayoutError or PlanError if a plan with this layout would.
    """
    specs = {t.spec.name: t.spec for t in info.tensors.values()}
    keys = {t.spec.name for t in info.tensors.values() if t.is_key}
    changes = layout.changes if isinstance(layout, LayoutFile) else Changes()
    kept = rewrites(changes, [leaf.name for leaf in info.leaves], specs, keys)
    look_up(layout, [r.target for r in kept if r.source in specs])
    tensors = tuple(_tensor_preview(specs[r.source], r, layout) for r in kept if r.source in specs)
    names, sources = [t.target.name for t in tensors], [t.source for t in tensors]
    return LayoutPreview(tensors, tuple(layout_warnings(layout, names, sources)))


def _tensor_preview(source: TensorSpec, rewrite: Rewrite, layout: Layout | None) -> TensorPreview:
    dtype = rewrite.dtype or source.dtype
    whole = Grid.whole(source.shape)
    bare = TensorSpec(rewrite.target, source.shape, dtype, whole)
    parts = split(bare, source, layout)
    placed = None if parts.partition is not None else parts.layout
    return TensorPreview(source, replace(bare, layout=placed), parts.slices, parts.partition)
