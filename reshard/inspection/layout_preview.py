"""LayoutPreview: the slices of a checkpoint's tensors before and after a layout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from reshard.answers.record import Json, Record, counted, several, warned
from reshard.answers.shared import Axes, MeshDocument, Shape
from reshard.formats.quantized import find_pairs
from reshard.geometry.grid import Grid
from reshard.geometry.sizes import format_bytes
from reshard.inspection.checkpoint_info import CheckpointInfo
from reshard.layout.changes import Changes
from reshard.layout.layout_file import LayoutFile
from reshard.layout.tensor_spec import TensorSpec, change_text
from reshard.planning.pair_layouts import TargetPairs
from reshard.planning.rules import Rewrite, rewrites
from reshard.planning.target_layouts import (
    Layout,
    TensorSplit,
    layout_warnings,
    look_up,
    split,
)


class TensorPreview(Record, frozen=True, kw_only=True):
    """The split of a tensor by a layout; shape and bytes are the largest shard's.

    Attributes:
        partition: strategy, amount and axis, if it is split by count or size.
        source_spec, target_spec, slices: both ends and the slices of the target in detail; the target's chunks are chosen later. None
            where a server tells it.
    """

    JSON: ClassVar[Json] = Json(
        (
            "source", "target", "shape", "dtype", "source_mesh", "source_axes", "source_shards", "target_mesh",
            "target_axes", "target_shards", "target_shard_shape", "target_shard_bytes", "partition",
        )
    )  # fmt: skip

    source: str
    target: str
    shape: Shape
    dtype: str
    source_mesh: MeshDocument | None
    source_axes: Axes | None
    source_shards: Shape | None
    target_mesh: MeshDocument | None
    target_axes: Axes | None
    target_shards: Shape
    target_shard_shape: Shape
    target_shard_bytes: int
    partition: Mapping[str, Any] | None
    source_spec: Any = None
    target_spec: Any = None
    slices: Any = None

    @classmethod
    def of(
        cls,
        source: TensorSpec,
        target: TensorSpec,
        slices: Grid,
        partition: Mapping[str, Any] | None = None,
    ) -> TensorPreview:
        """The record of a tensor with the slices that a layout gives it."""
        return cls(
            source=source.name,
            target=target.name,
            shape=target.shape,
            dtype=target.dtype,
            source_mesh=source._mesh_document,
            source_axes=source._axes,
            source_shards=source.slices.parts if source.layout else None,
            target_mesh=target._mesh_document,
            target_axes=target._axes,
            target_shards=slices.parts,
            target_shard_shape=slices.largest,
            target_shard_bytes=math.prod(slices.largest) * target.itemsize,
            partition=partition,
            source_spec=source,
            target_spec=target,
            slices=slices,
        )

    def __repr__(self) -> str:
        was = self.dtype if self.source_spec is None else self.source_spec.dtype
        axes = self.source_axes, self.target_axes
        changed = change_text((self.source, self.target), (was, self.dtype), self.shape, axes)
        return f"TensorPreview({changed}, shards of {list(self.target_shard_shape)})"

    @property
    def is_partitioned(self) -> bool:
        """True if it is split by count or size instead of by mesh axes."""
        return self.partition is not None


class LayoutPreview(Record, frozen=True, kw_only=True):
    """Every tensor that a layout keeps; shapes and bytes are the largest shard's.

    Attributes:
        file, source: set where a command or a server previews.
    """

    JSON: ClassVar[Json] = Json(later=("warnings",))

    file: Annotated[
        str | UnsetType | None,
        Meta(description="The stored layout's name, if the request names one."),
    ] = UNSET
    source: str | UnsetType = UNSET
    tensors: tuple[TensorPreview, ...]
    device_bytes: Annotated[int, Meta(description="Bytes on each device of the mesh.")]
    partitioned_bytes: Annotated[
        int, Meta(description="Bytes of tensors that are split by count or size instead.")
    ]
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        size = format_bytes(self.device_bytes)
        headline = f"{counted(len(self.tensors), 'tensor')}, {size} on each device"
        return several("LayoutPreview", headline, self.tensors, warned(self.warnings))


def preview(info: CheckpointInfo, layout: Layout | None) -> LayoutPreview:
    """Lays out the tensors of ``info`` that the layout's own changes keep.

    Raises LayoutError or PlanError if a plan with this layout would.
    """
    specs = {t.spec.name: t.spec for t in info.tensors.values()}
    keys = {t.spec.name for t in info.tensors.values() if t.is_key}
    changes = layout.changes if isinstance(layout, LayoutFile) else Changes()
    every = rewrites(changes, [leaf.name for leaf in info.leaves], specs, keys)
    kept = {r.target: r for r in every if r.source in specs}
    look_up(layout, list(kept))
    of = {name: specs[r.source] for name, r in kept.items()}
    bare = {name: _bare(of[name], r) for name, r in kept.items()}
    alike = TargetPairs.of(find_pairs(specs), bare, of, layout).splits
    tensors = tuple(
        _tensor_preview(of[n], bare[n], alike.get(n) or split(bare[n], of[n], layout)) for n in kept
    )
    names, sources = list(kept), list(of.values())
    return LayoutPreview(
        tensors=tensors,
        device_bytes=sum(t.target_shard_bytes for t in tensors if not t.is_partitioned),
        partitioned_bytes=sum(t.target_spec.nbytes for t in tensors if t.is_partitioned),
        warnings=tuple(layout_warnings(layout, names, sources)),
    )


def _bare(source: TensorSpec, rewrite: Rewrite) -> TensorSpec:
    dtype = rewrite.dtype or source.dtype
    return TensorSpec(rewrite.target, source.shape, dtype, Grid.whole(source.shape))


def _tensor_preview(source: TensorSpec, bare: TensorSpec, parts: TensorSplit) -> TensorPreview:
    placed = None if parts.partition is not None else parts.layout
    target = replace(bare, layout=placed)
    return TensorPreview.of(source, target, parts.slices, parts.partition)
