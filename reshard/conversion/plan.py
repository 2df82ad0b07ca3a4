"""The plans of a conversion: of one target, and of several.

PlannedIdentity: the cost of a target's identity, known before anything is written.

MapSummary: the effect of a map on a source, as plans and reports show it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import replace

from reshard.answers.record import Json, Record, counted, several, warned
from reshard.answers.shared import MissingNumbers, QuantizedText
from reshard.conversion.planned_tensor import PlannedTensor, change_of
from reshard.errors import PlanError
from reshard.geometry.sizes import format_bytes
from reshard.maps.mapped import Mapped
from reshard.planning.estimates import Hosts, RequestPlan, TimePlan, plan_time
from reshard.planning.plans import MultiPlan, Plan
from reshard.storage.base import PlannedRequests
from reshard.storage.target import traits_at


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
    def of(cls, plan: Plan) -> PlanTotals:
        """The totals of the tasks."""
        return cls(
            len(plan.tensors),
            plan.tasks,
            plan.source_bytes,
            plan.decoded_bytes,
            plan.written_bytes,
            plan.amplification,
            plan.peak_bytes,
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
    to = [traits_at(plan.target).requests for plan in plans]
    found = plan_time(
        joint, traits_at(planned.source).requests, to, machines, planned.request_plan, latency_s
    )
    # The identities of the targets come after their tasks.
    return found.after(sum(plan.identity.core_s for plan in plans if plan.identity is not None))
