"""The plans of a conversion: of each tensor, each target, and several targets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, field

from reshard.conversion.map_summary import MapSummary
from reshard.conversion.planned_identity import PlannedIdentity
from reshard.documents import plans as documents
from reshard.documents.plans import MultiPlanAnswer, PlanAnswer, PlanTotals
from reshard.documents.shared import Change
from reshard.geometry.grid import Grid
from reshard.geometry.sizes import format_bytes
from reshard.layout.tensor_spec import TensorSpec, change_text
from reshard.planning.estimates import Hosts, RequestPlan, TimePlan, plan_time
from reshard.planning.plans import MultiPlan, Plan, TensorPlan
from reshard.record import Record, counted, origins_text, several, warned
from reshard.storage.requests import RequestTraits
from reshard.storage.target import traits_at


class PlannedTensor(Record, frozen=True):
    """One tensor of a plan, with both ends.

    Attributes:
        partition: strategy, amount and axis, where the target is split by count or size.
        slices: the slices of the target, where ``target.slices`` does not give them.
        sources: with a map, all source tensors, ``source`` first; else None.
        change: with a map, the change to the elements; else None.
    """

    source: TensorSpec
    target: TensorSpec
    plan: TensorPlan
    partition: Mapping[str, Any] | None = None
    slices: Grid | None = None
    sources: tuple[str, ...] | None = None
    change: Change | None = None

    def __repr__(self) -> str:
        if self.sources is not None:
            made = f"{origins_text(self.sources)} → {self.target.name!r}"
            return f"PlannedTensor({made}: {self.target.dtype} {list(self.target.shape)}, {self.change})"
        return f"PlannedTensor({change_text(self.source, self.target)}, {self.plan.strategy})"

    @property
    def source_shards(self) -> Grid | None:
        """The slices of the source's layout; None where it recorded no layout, and where a map makes other tensors of it."""
        is_own = self.source.layout is not None and self.sources is None
        return self.source.slices if is_own else None

    def _document(self, shares: bool = False) -> documents.PlannedTensor:
        source, target, price = self.source, self.target, self.plan.price
        before, after = self.source_shards, self.target_shards
        return documents.PlannedTensor(
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
            source_mesh=None if self.sources is not None else source._mesh_document,
            target_mesh=target._mesh_document,
            source_axes=None if self.sources is not None else source._axes,
            target_axes=target._axes,
            partition=self.partition,
            strategy=self.plan.strategy,
            tasks=price.tasks,
            source_bytes=price.source_bytes,
            decoded_bytes=price.decoded_bytes,
            written_bytes=price.written_bytes,
            amplification=price.amplification,
            task_bytes=price.task_bytes,
            source_largest_chunk=source.storage.largest,
            target_largest_chunk=target.storage.largest,
            shares=UNSET if not shares else () if self.sources is not None else _shares(self.plan),
            sources=UNSET if self.sources is None else self.sources,
            change=UNSET if self.change is None else self.change,
        )

    @property
    def target_shards(self) -> Grid | None:
        """The slices of the target's layout or partition; None without either.

        The chunks that are stored (``target.storage``) may be larger or smaller than the shards.
        """
        if self.slices is not None:
            return self.slices
        return None if self.target.layout is None else self.target.slices


def _shares(plan: TensorPlan) -> tuple[tuple[int, int, float], ...]:
    from reshard.planning.target_layouts import shares

    return tuple((share.target, share.source, share.share) for share in shares(plan))


class ConversionPlan(Record, frozen=True):
    """The plan of a conversion, made before anything is written.

    Attributes:
        target: None where none was named; then nothing that depends on it is known.
        carried: leaves that are no tensors and travel along unchanged.
        dropped: leaves of the source that are left out.
        free_bytes: bytes that are free on the target's file system.
        missing_chunks: number of chunks that are not stored, by the name of each source tensor that lacks any; the fill
            value is taken in their place.
        requests: to buckets, where the source or the target is in one; of several targets ``MultiConversionPlan`` has
            those of all together.
        map: the effect of the map on the source; None without one.
        identity: the cost of the identity of the target's weights; None where none is made.
        quantized: the weights of the source that are codes with scales, in words; "" where it has none.
    """

    source: str
    target: str | None
    plan: Plan
    tensors: tuple[PlannedTensor, ...]
    carried: tuple[str, ...]
    dropped: tuple[str, ...]
    warnings: tuple[str, ...]
    free_bytes: int | None
    requests: RequestPlan | None = None
    missing_chunks: Mapping[str, int] = field(default_factory=dict)
    map: MapSummary | None = None
    identity: PlannedIdentity | None = None
    quantized: str = ""

    def __repr__(self) -> str:
        target = "" if self.target is None else f" → {self.target!r}"
        headline = f"{self.source!r}{target}: {_costs(self.plan, self.peak_bytes)}"
        return several("ConversionPlan", headline, self.tensors, warned(self.warnings))

    def _document(
        self, shares: bool = False, time: TimePlan | None = None, **link: float
    ) -> PlanAnswer:
        """The answer; ``link``: arguments of ``RequestPlan.seconds``. It has ``shares`` and ``time`` only if they were asked for."""
        return PlanAnswer(
            source=self.source,
            target=self.target,
            tensors=tuple(tensor._document(shares) for tensor in self.tensors),
            totals=_totals(self.plan, self.peak_bytes),
            carried=self.carried,
            dropped=self.dropped,
            warnings=self.warnings,
            missing_chunks=self.missing_chunks,
            free_bytes=self.free_bytes,
            requests=None if self.requests is None else self.requests._document(**link),
            time=UNSET if time is None else time._document(),
            map=UNSET if self.map is None else self.map._document(),
            identity=UNSET if self.identity is None else self.identity._document(),
            quantized=self.quantized or UNSET,
        )

    @property
    def tasks(self) -> int:
        """Number of tasks that fill the tensors."""
        return self.plan.tasks

    @property
    def decoded_bytes(self) -> int:
        """Bytes decoded from source chunks, repetition included."""
        return self.plan.decoded_bytes

    @property
    def written_bytes(self) -> int:
        """Encoded bytes of the target's chunks."""
        return self.plan.written_bytes

    @property
    def amplification(self) -> float:
        """Bytes decoded for each byte that the source stores."""
        return self.plan.amplification

    @property
    def metadata_bytes(self) -> int:
        """Memory of the checkpoint's index and of the plan itself."""
        return self.plan.metadata_bytes

    @property
    def peak_bytes(self) -> int:
        """Buffers in memory at the worst moment; never above ``max_memory``."""
        return max(self.plan.peak_bytes, 0 if self.identity is None else self.identity.peak_bytes)

    def time(
        self,
        hosts: int = 1,
        nic_bytes_per_s: float | None = None,
        cores: int | None = None,
        latency_s: float = RequestPlan.LATENCY_S,
    ) -> TimePlan:
        """The time that the conversion takes, and its bottleneck; PlanError for impossible numbers.

        Args:
            hosts: number of hosts that share the work.
            nic_bytes_per_s: bytes per second of each host's network interface in each direction; without it the network is
                not counted.
            cores: processors of each host; the default is those of this machine. Each of the plan's workers uses one.
            latency_s: of a request to a bucket.
        """
        machines = Hosts.checked(hosts, _cores(cores), nic_bytes_per_s)
        ends = _requests_to(self.source), [_requests_to(self.target)]
        joint = MultiPlan.alone(self.plan)
        planned = plan_time(joint, *ends, machines, self.requests, latency_s)
        return planned.after(core_seconds([self]))


def _requests_to(place: str | None) -> RequestTraits:
    """The traits of requests to the store of a place; None is a target without a name."""
    return traits_at(place).requests


def core_seconds(plans: Sequence[ConversionPlan]) -> float:
    """Seconds of one processor that the identities of targets take, after their tasks."""
    return sum(plan.identity.core_s for plan in plans if plan.identity is not None)


def _totals(plan: Plan, peak_bytes: int) -> PlanTotals:
    return PlanTotals(
        tensors=len(plan.tensors),
        tasks=plan.tasks,
        source_bytes=plan.source_bytes,
        decoded_bytes=plan.decoded_bytes,
        written_bytes=plan.written_bytes,
        amplification=plan.amplification,
        peak_bytes=peak_bytes,
        max_memory=plan.allowed_bytes or plan.max_memory,
        metadata_bytes=plan.metadata_bytes,
        workers=plan.workers,
        processes=plan.processes,
    )


def _cores(given: int | None) -> int:
    return len(os.sched_getaffinity(0)) if given is None else given


def _costs(plan: Plan, peak_bytes: int) -> str:
    moved = f"reads {format_bytes(plan.decoded_bytes)}, writes {format_bytes(plan.written_bytes)}"
    tasks = f"{counted(len(plan.tensors), 'tensor')} in {counted(plan.tasks, 'task')}"
    return f"{tasks}, {moved}, {format_bytes(peak_bytes)} of buffers at most"


class MultiConversionPlan(Record, frozen=True):
    """The plan of a conversion to several targets, made before anything is written.

    Attributes:
        plans: of each target, in the order in which they were given.
        total: the reads that their tensors share, and the cost of all.
        requests: to buckets, where the source or a target is in one.
    """

    source: str
    plans: tuple[ConversionPlan, ...]
    total: MultiPlan
    requests: RequestPlan | None = None

    def time(
        self,
        hosts: int = 1,
        nic_bytes_per_s: float | None = None,
        cores: int | None = None,
        latency_s: float = RequestPlan.LATENCY_S,
    ) -> TimePlan:
        """The time that all targets together take, as ``ConversionPlan.time`` gives it for one; a shared read counts once."""
        machines = Hosts.checked(hosts, _cores(cores), nic_bytes_per_s)
        ends = _requests_to(self.source), [_requests_to(plan.target) for plan in self.plans]
        planned = plan_time(self.total, *ends, machines, self.requests, latency_s)
        return planned.after(core_seconds(self.plans))

    def __repr__(self) -> str:
        lines = [str(plan).partition("\n")[0] for plan in self.plans]
        read = (
            f"reads {format_bytes(self.total.decoded_bytes)} in {counted(self.total.tasks, 'task')}"
        )
        headline = f"{self.source!r}: {counted(len(self.plans), 'target')}, {read}"
        return several("MultiConversionPlan", headline, lines)

    def _document(
        self, shares: bool = False, time: TimePlan | None = None, **link: float
    ) -> MultiPlanAnswer:
        """The answer; arguments as for ``ConversionPlan``."""
        joint = self.total
        return MultiPlanAnswer(
            source=self.source,
            plans=tuple(plan._document(shares, None, **link) for plan in self.plans),
            reads=len(joint.reads),
            tasks=joint.tasks,
            source_bytes=joint.source_bytes,
            decoded_bytes=joint.decoded_bytes,
            repeated_bytes=joint.repeated_bytes,
            written_bytes=joint.written_bytes,
            amplification=joint.amplification,
            peak_bytes=max(joint.peak_bytes, *(plan.peak_bytes for plan in self.plans)),
            requests=None if self.requests is None else self.requests._document(**link),
            time=UNSET if time is None else time._document(),
        )
