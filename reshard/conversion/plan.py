"""The plans of a conversion: of each tensor, each target, and several targets.

PlannedIdentity: the cost of a target's identity, known before anything is written.

MapSummary: the effect of a map on a source, as plans and reports show it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import replace

from reshard.answers.record import Json, MadeLater, Record, counted, origins_text, several, warned
from reshard.answers.shared import (
    Axes,
    Change,
    MeshDocument,
    MissingNumbers,
    QuantizedText,
    Shape,
    Strategy,
)
from reshard.conversion.known_identity import KnownIdentity
from reshard.errors import PlanError
from reshard.formats.base import TargetCheckpoint
from reshard.formats.contents import StoredTensor
from reshard.geometry.grid import Grid
from reshard.geometry.sizes import format_bytes
from reshard.identity.read_leaves import hashing_memory
from reshard.layout.tensor_spec import change_text
from reshard.maps.mapped import Mapped, MappedTensor
from reshard.planning.estimates import Hosts, RequestPlan, TimePlan, plan_time
from reshard.planning.plans import MultiPlan, Plan, TensorPlan
from reshard.planning.task_cost import DECODE_BYTES_PER_SECOND
from reshard.storage.base import PlannedRequests, RequestTraits
from reshard.storage.target import traits_at

HASH_BYTES_PER_SECOND = 1.7e9
"""Reading the written bytes, finding their tiles and hashing them, on one core (measured, docs/decisions/0065)."""


class PlannedIdentity(Record, frozen=True):
    """The cost of the identity of a target's weights.

    Attributes:
        read_bytes: 0 where the identity is carried.
        decoded_bytes: also where chunks were copied encoded.
        peak_bytes: buffers in memory at the worst moment; never above ``max_memory``.
        source: None where the source records none, and then no receipt is written.
    """

    JSON: ClassVar[Json] = Json(left_out=("source",))

    how: Literal["carry", "compute", "check"]
    read_bytes: Annotated[
        int, Meta(description="Of the target's tensors, which are read once more to be hashed.")
    ] = 0
    decoded_bytes: Annotated[
        int, Meta(description="Those of them that are stored compressed, so that they are decoded.")
    ] = 0
    peak_bytes: int = 0
    core_s: Annotated[float, Meta(description="Seconds of one processor, about.")] = 0.0
    source: Annotated[
        str | None, Meta(description="Root that the source records, 64 hex digits.")
    ] = None


def planned_identity(
    known: KnownIdentity, target: TargetCheckpoint, max_memory: int, workers: int
) -> PlannedIdentity | None:
    """The cost of an identity; None where none is made. MemoryBudgetError where hashing needs more memory."""
    source = None if known.of_source is None else known.of_source.root
    if known.mode == "none":
        return None
    if known.mode == "carry":
        return PlannedIdentity("carry", source=source)
    written = [
        StoredTensor(t.spec, t.encoding, b"", may_be_missing=False) for t in target.tensors.values()
    ]
    nbytes = sum(tensor.spec.nbytes for tensor in written)
    decoded = _decoded_bytes(written)
    return PlannedIdentity(
        known.mode,
        nbytes,
        decoded,
        hashing_memory(written, max_memory, workers),
        nbytes / HASH_BYTES_PER_SECOND + decoded / DECODE_BYTES_PER_SECOND,
        source,
    )


def _decoded_bytes(written: Collection[StoredTensor]) -> int:
    return sum(t.spec.nbytes for t in written if t.encoding.compressor != "none")


class MapSummary(Record, frozen=True):
    """The effect of a map on a source. Every element of ``sources`` is used, and every element of ``targets`` is written once.

    Attributes:
        exact: those whose every bit is the source's; factors that are powers of two count, short of subnormals.
        rounded: those that arithmetic may round.
        cast: those of another dtype.
    """

    sources: Annotated[int, Meta(description="Tensors of the source that are taken.")]
    targets: Annotated[int, Meta(description="Tensors that are made of them.")]
    exact: int
    rounded: int
    cast: int
    tied: Annotated[
        tuple[tuple[str, str], ...],
        Meta(description="Pairs of source tensors that must be equal; the first is not written."),
    ] = ()
    cropped: Annotated[
        tuple[str, ...], Meta(description="Source tensors of which the map takes a part.")
    ] = ()

    @classmethod
    def of(cls, mapping: Mapped) -> MapSummary:
        """The summary of a map."""
        pieces = (piece for made in mapping.tensors for piece in made.pieces)
        taken = {piece.source for piece in pieces if piece.fill is None}
        counts = Counter(map(change_of, mapping.tensors))
        return cls(
            len(taken) + len(mapping.equal),
            len(mapping.tensors),
            counts["exact"],
            counts["rounded"],
            counts["cast"],
            mapping.equal,
            mapping.cropped,
        )

    def __repr__(self) -> str:
        every = "all elements but those of crops" if self.cropped else "every element"
        made = [f"{n:,} {what}" for n, what in ((self.exact, "exact"), (self.rounded, "rounded"), (self.cast, "cast")) if n]  # fmt: skip
        tied = f"; {counted(len(self.tied), 'tied tensor')} must be equal" if self.tied else ""
        return (
            f"map: {counted(self.sources, 'tensor')} {'becomes' if self.sources == 1 else 'become'} {self.targets:,}, {every} once "
            f"({', '.join(made)}){tied}"
        )


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
        shares = () if self.sources is not None or self.plan is None else _shares(self.plan)
        return replace(self, shares=shares)

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


def _shares(plan: TensorPlan) -> tuple[tuple[int, int, float], ...]:
    from reshard.planning.target_layouts import shares

    return tuple((share.target, share.source, share.share) for share in shares(plan))


class PlanTotals(Struct, frozen=True):
    """Totals of a plan's tensors."""

    JSON: ClassVar[Json] = Json(later=("processes",))

    tensors: int
    tasks: int
    source_bytes: int
    decoded_bytes: int
    written_bytes: int
    amplification: float
    peak_bytes: int
    max_memory: int
    metadata_bytes: int
    workers: int
    processes: Annotated[
        int, Meta(description="Processes that share the workers; 0 for threads of one process.")
    ] = 0

    @classmethod
    def of(cls, plan: Plan, peak_bytes: int) -> PlanTotals:
        """The totals; ``peak_bytes`` of the tasks, or of the identity that is made after them."""
        return cls(
            len(plan.tensors),
            plan.tasks,
            plan.source_bytes,
            plan.decoded_bytes,
            plan.written_bytes,
            plan.amplification,
            peak_bytes,
            plan.allowed_bytes or plan.max_memory,
            plan.metadata_bytes,
            plan.workers,
            plan.processes,
        )


class ConversionPlan(Record, frozen=True, kw_only=True):
    """The plan of a conversion, made before anything is written.

    Attributes:
        target: None where none was named; then nothing that depends on it is known.
        tensors: each is made when it is looked at.
        carried: leaves that are no tensors and travel along unchanged.
        dropped: leaves of the source that are left out.
        free_bytes: bytes that are free on the target's file system.
        requests: ``request_plan`` on the default link.
        map: None without one.
        identity: None where none is made.
        quantized: "" where the source has no such weights.
        timed: the time on hosts, where a command was asked for it.
        plan, request_plan: tasks and requests in detail; None in a plan that a server made.
    """

    JSON: ClassVar[Json] = Json(
        (
            "source", "target", "tensors", "totals", "carried", "dropped", "warnings", "missing_chunks", "free_bytes",
            "requests", "timed", "map", "identity", "quantized",
        ),
        left_out=("map", "identity", "quantized"),
        later=("warnings", "missing_chunks", "requests"),
        only_commands=("timed",),
    )  # fmt: skip

    source: str
    target: str | None
    tensors: Sequence[PlannedTensor]
    totals: PlanTotals
    carried: tuple[str, ...]
    dropped: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    missing_chunks: MissingNumbers = field(default_factory=dict)
    free_bytes: int | None
    requests: Annotated[
        PlannedRequests | None,
        Meta(
            description="Requests to buckets; null if nothing is in one, and for each of several targets."
        ),
    ] = None
    timed: TimePlan | UnsetType = field(default=UNSET, name="time")
    map: Annotated[MapSummary | None, Meta(description="What a map makes of the source.")] = None
    identity: Annotated[
        PlannedIdentity | None,
        Meta(description="What the identity of the weights costs, where one is made."),
    ] = None
    quantized: QuantizedText = ""
    plan: Any = None
    request_plan: Any = None

    def __repr__(self) -> str:
        target = "" if self.target is None else f" → {self.target!r}"
        totals = self.totals
        tasks = f"{counted(totals.tensors, 'tensor')} in {counted(totals.tasks, 'task')}"
        moved = f"reads {format_bytes(totals.decoded_bytes)}, writes {format_bytes(totals.written_bytes)}"
        peak = f"{format_bytes(totals.peak_bytes)} of buffers at most"
        headline = f"{self.source!r}{target}: {tasks}, {moved}, {peak}"
        return several("ConversionPlan", headline, self.tensors, warned(self.warnings))

    def with_shares(self) -> ConversionPlan:
        """The same, with the shares of source shards in target shards."""
        return replace(self, tensors=tuple(one.with_shares() for one in self.tensors))

    @property
    def tasks(self) -> int:
        """Number of tasks that fill the tensors."""
        return self.totals.tasks

    @property
    def decoded_bytes(self) -> int:
        """Bytes decoded from source chunks, repetition included."""
        return self.totals.decoded_bytes

    @property
    def written_bytes(self) -> int:
        """Encoded bytes of the target's chunks."""
        return self.totals.written_bytes

    @property
    def amplification(self) -> float:
        """Bytes decoded for each byte that the source stores."""
        return self.totals.amplification

    @property
    def metadata_bytes(self) -> int:
        """Memory of the checkpoint's index and of the plan itself."""
        return self.totals.metadata_bytes

    @property
    def peak_bytes(self) -> int:
        """Buffers in memory at the worst moment; never above ``max_memory``."""
        return self.totals.peak_bytes

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
        return _time(self, [self], hosts, nic_bytes_per_s, cores, latency_s)


class MultiConversionPlan(Record, frozen=True, kw_only=True):
    """The plan of a conversion to several targets, made before anything is written, with the totals of all.

    Attributes:
        plans: of each target, in the order in which they were given.
        requests: ``request_plan`` on the default link.
        timed: the time on hosts, where a command was asked for it.
        total, request_plan: shared reads and requests in detail; None in a plan that a server made.
    """

    JSON: ClassVar[Json] = Json(
        (
            "source", "plans", "reads", "tasks", "source_bytes", "decoded_bytes", "repeated_bytes", "written_bytes",
            "amplification", "peak_bytes", "requests", "timed",
        ),
        later=("requests",),
        only_commands=("timed",),
    )  # fmt: skip

    source: str
    plans: tuple[ConversionPlan, ...]
    reads: Annotated[int, Meta(description="Reads; targets that share a decoded chunk count once.")]
    tasks: int
    source_bytes: int
    decoded_bytes: int
    repeated_bytes: Annotated[
        int,
        Meta(
            description="Bytes that are decoded more than once, because that saves memory or time."
        ),
    ]
    written_bytes: int
    amplification: float
    peak_bytes: int
    requests: Annotated[
        PlannedRequests | None,
        Meta(description="Requests to buckets for all targets; null if nothing is in one."),
    ] = None
    timed: TimePlan | UnsetType = field(default=UNSET, name="time")
    total: Any = None
    request_plan: Any = None

    @classmethod
    def of(
        cls,
        source: str,
        plans: tuple[ConversionPlan, ...],
        total: MultiPlan,
        requests: RequestPlan | None = None,
    ) -> MultiConversionPlan:
        """The plan of all targets; ``total`` has the reads that their tensors share."""
        return cls(
            source=source,
            plans=plans,
            reads=len(total.reads),
            tasks=total.tasks,
            source_bytes=total.source_bytes,
            decoded_bytes=total.decoded_bytes,
            repeated_bytes=total.repeated_bytes,
            written_bytes=total.written_bytes,
            amplification=total.amplification,
            peak_bytes=max(total.peak_bytes, *(plan.peak_bytes for plan in plans)),
            requests=None if requests is None else requests.on_link(),
            total=total,
            request_plan=requests,
        )

    def time(
        self,
        hosts: int = 1,
        nic_bytes_per_s: float | None = None,
        cores: int | None = None,
        latency_s: float = RequestPlan.LATENCY_S,
    ) -> TimePlan:
        """The time that all targets together take, as ``ConversionPlan.time`` gives it for one; a shared read counts once."""
        return _time(self, self.plans, hosts, nic_bytes_per_s, cores, latency_s)

    def with_shares(self) -> MultiConversionPlan:
        """The same, with the shares of source shards in target shards."""
        return replace(self, plans=tuple(plan.with_shares() for plan in self.plans))

    def __repr__(self) -> str:
        lines = [str(plan).partition("\n")[0] for plan in self.plans]
        read = f"reads {format_bytes(self.decoded_bytes)} in {counted(self.tasks, 'task')}"
        headline = f"{self.source!r}: {counted(len(self.plans), 'target')}, {read}"
        return several("MultiConversionPlan", headline, lines)


class JointPlan(Struct, frozen=True):
    """The plans of all targets of a run.

    The answer is made only where one is asked for: of 100,000 tensors the totals take two seconds and 20 MiB.
    """

    source: str
    plans: tuple[ConversionPlan, ...]
    total: MultiPlan
    requests: RequestPlan | None = None

    def with_requests(self, requests: RequestPlan | None) -> JointPlan:
        """The plans with their requests; a single target gets them too."""
        plans = (priced(self.plans[0], requests),) if len(self.plans) == 1 else self.plans
        return JointPlan(self.source, plans, self.total, requests)

    def answer(self) -> MultiConversionPlan:
        """The record that a call returns."""
        return MultiConversionPlan.of(self.source, self.plans, self.total, self.requests)


P = TypeVar("P", ConversionPlan, MultiConversionPlan)


def priced(planned: P, requests: RequestPlan | None, **link: float) -> P:
    """The plan with its requests to buckets, and their time on a link; ``link`` has the arguments of ``RequestPlan.seconds``."""
    found = None if requests is None else requests.on_link(**link)
    return replace(planned, requests=found, request_plan=requests)


def _time(
    planned: ConversionPlan | MultiConversionPlan,
    plans: Sequence[ConversionPlan],
    hosts: int,
    nic_bytes_per_s: float | None,
    cores: int | None,
    latency_s: float,
) -> TimePlan:

    if cores is None:
        cores = len(os.sched_getaffinity(0))
    machines = Hosts.checked(hosts, cores, nic_bytes_per_s)
    if plans[0].plan is None:
        raise PlanError(
            "a server made this plan, and tells no tasks, of which the time is computed; plan on this host (reshard.plan)"
        )
    joint = (
        planned.total if isinstance(planned, MultiConversionPlan) else MultiPlan.alone(planned.plan)
    )
    ends = _requests_to(planned.source), [_requests_to(plan.target) for plan in plans]
    found = plan_time(joint, *ends, machines, planned.request_plan, latency_s)
    return found.after(core_seconds(plans))


def _requests_to(place: str | None) -> RequestTraits:
    """The traits of requests to the store of a place; None is a target without a name."""
    return traits_at(place).requests


def core_seconds(plans: Sequence[ConversionPlan]) -> float:
    """Seconds of one processor that the identities of targets take, after their tasks."""
    return sum(plan.identity.core_s for plan in plans if plan.identity is not None)
