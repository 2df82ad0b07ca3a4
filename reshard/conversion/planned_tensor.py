"""PlannedTensor: the work of a plan for one tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from reshard.answers.record import Json, MadeLater, Record, origins_text
from reshard.answers.shared import Axes, Change, MeshDocument, Shape, Strategy
from reshard.formats.base import TargetCheckpoint
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import change_text
from reshard.maps.mapped import MappedTensor
from reshard.planning.plans import TensorPlan


def change_of(tensor: TensorPlan | MappedTensor) -> Change:
    """The change to a tensor's elements."""
    found: Change = "exact"
    for piece in tensor.pieces:
        if piece.arithmetic is not None and not piece.arithmetic.is_exact:
            return "rounded"
        if piece.is_cast:
            found = "cast"
    return found


def sources_of(tensor: TensorPlan) -> tuple[str, ...]:
    """The names of a tensor's sources, each once."""
    return tuple(dict.fromkeys(piece.source for piece in tensor.pieces if piece.fill is None))


class PlannedTensor(Record, frozen=True, kw_only=True):
    """The work of a plan for one tensor; shards are null if there is no layout.

    Attributes:
        source_shards, target_shards: numbers of slices of the layout or partition, along each dimension. The chunks that are stored
            may be larger or smaller than the slices.
        sources: ``source`` first; None without a map.
        change: None without a map.
        source_spec, target_spec, plan: both ends and the tasks in detail; None in a plan that a server made.
    """

    JSON: ClassVar[Json] = Json(
        (
            "source", "target", "shape", "source_dtype", "target_dtype", "source_shards", "source_shard_shape",
            "target_shards", "target_shard_shape", "source_chunk_shape", "target_chunk_shape", "source_chunks",
            "target_chunks", "source_mesh", "target_mesh", "source_axes", "target_axes", "partition", "strategy", "tasks",
            "source_bytes", "decoded_bytes", "written_bytes", "amplification", "task_bytes", "source_largest_chunk",
            "target_largest_chunk", "shares", "sources", "change",
        ),
        left_out=("sources", "change"),
        later=("source_largest_chunk", "target_largest_chunk"),
    )  # fmt: skip

    source: str
    target: str
    shape: Shape
    source_dtype: str
    target_dtype: str
    source_shards: Shape | None
    source_shard_shape: Shape | None
    target_shards: Shape | None
    target_shard_shape: Shape | None
    source_chunk_shape: Shape | None
    target_chunk_shape: Shape | None
    source_chunks: int
    target_chunks: int
    source_mesh: MeshDocument | None
    target_mesh: MeshDocument | None
    source_axes: Axes | None
    target_axes: Axes | None
    partition: Mapping[str, Any] | None
    strategy: Strategy
    tasks: int
    source_bytes: int
    decoded_bytes: int
    written_bytes: int
    amplification: float
    task_bytes: int
    source_largest_chunk: Annotated[
        Shape | None, Meta(description="Shape of the largest chunk, without its padding.")
    ] = None
    target_largest_chunk: Annotated[
        Shape | None, Meta(description="Shape of the largest chunk, without its padding.")
    ] = None
    shares: Annotated[
        tuple[tuple[int, int, float], ...] | UnsetType,
        Meta(description="[target shard, source shard, share], if the request asks for shares."),
    ] = UNSET
    sources: Annotated[
        tuple[str, ...] | None, Meta(description="Of a map: all source tensors.")
    ] = None
    change: Annotated[
        Change | None, Meta(description="Of a map: what becomes of the elements.")
    ] = None
    source_spec: Any = None
    target_spec: Any = None
    plan: Any = None

    @classmethod
    def of(
        cls,
        plan: TensorPlan,
        partition: Mapping[str, Any] | None = None,
        slices: Grid | None = None,
        *,
        is_mapped: bool = False,
    ) -> PlannedTensor:
        """The record of a tensor's plan; ``slices`` are the target's, where its layout does not give them."""
        source, target, price = plan.source.spec, plan.target.spec, plan.price
        before = None if source.layout is None or is_mapped else source.slices
        after = target.slices if slices is None and target.layout is not None else slices
        return cls(
            source=source.name,
            target=target.name,
            shape=target.shape,
            source_dtype=source.dtype,
            target_dtype=target.dtype,
            source_shards=None if before is None else before.parts,
            source_shard_shape=None if before is None else before.largest,
            target_shards=None if after is None else after.parts,
            target_shard_shape=None if after is None else after.largest,
            source_chunk_shape=source.chunk_shape,
            target_chunk_shape=target.chunk_shape,
            source_chunks=source.storage.count,
            target_chunks=target.storage.count,
            source_mesh=None if is_mapped else source._mesh_document,
            target_mesh=target._mesh_document,
            source_axes=None if is_mapped else source._axes,
            target_axes=target._axes,
            partition=partition,
            strategy=plan.strategy,
            tasks=price.tasks,
            source_bytes=price.source_bytes,
            decoded_bytes=price.decoded_bytes,
            written_bytes=price.written_bytes,
            amplification=price.amplification,
            task_bytes=price.task_bytes,
            source_largest_chunk=source.storage.largest,
            target_largest_chunk=target.storage.largest,
            sources=sources_of(plan) if is_mapped else None,
            change=change_of(plan) if is_mapped else None,
            source_spec=source,
            target_spec=target,
            plan=plan,
        )

    def with_shares(self) -> PlannedTensor:
        """The same, with the shares that each source shard has of each target shard."""
        from reshard.planning.target_layouts import shares

        found = () if self.sources is not None or self.plan is None else shares(self.plan)
        every = tuple((share.target, share.source, share.share) for share in found)
        return replace(self, shares=every)

    def __repr__(self) -> str:
        if self.sources is not None:
            made = f"{origins_text(self.sources)} → {self.target!r}"
            return f"PlannedTensor({made}: {self.target_dtype} {list(self.shape)}, {self.change})"
        names = (self.source, self.target)
        changed = change_text(
            names,
            (self.source_dtype, self.target_dtype),
            self.shape,
            (self.source_axes, self.target_axes),
        )
        return f"PlannedTensor({changed}, {self.strategy})"


def planned_tensors(
    plans: Sequence[TensorPlan], checkpoint: TargetCheckpoint, *, is_mapped: bool
) -> Sequence[PlannedTensor]:
    """The records of the plans of a target's tensors, each made when it is looked at."""

    def planned(plan: TensorPlan) -> PlannedTensor:
        written = checkpoint.tensors[plan.name]
        shards = written.shards if written.partition else None
        slices = shards if isinstance(shards, Grid) else None
        return PlannedTensor.of(plan, written.partition, slices, is_mapped=is_mapped)

    return MadeLater(plans, planned)
